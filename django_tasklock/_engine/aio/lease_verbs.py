"""The verbs of a lease for code on an event loop."""

from __future__ import annotations

from .drive import finish

__all__ = ["AsyncLease"]


class AsyncLease:
    """The part of `Lease` that is awaited."""

    __slots__ = ()

    store: str

    async def aextend(self, ttl: float | None = None) -> bool:
        """`extend`, made in a thread. It may have been done if the caller is cancelled."""
        return await finish(self.store, lambda: self.extend(ttl))

    async def arelease(self) -> bool:
        """`release`, made in a thread. It is done even if the caller is cancelled."""
        return await finish(self.store, self.release)

    def extend(self, ttl: float | None = None) -> bool:
        """`Lease.extend`."""
        raise NotImplementedError

    def release(self) -> bool:
        """`Lease.release`."""
        raise NotImplementedError
