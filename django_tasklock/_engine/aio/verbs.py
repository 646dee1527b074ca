"""The verbs of `LockService` for code on an event loop."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import Any, TypedDict

from ..._values.event import Event
from ..._values.lock_info import LockInfo
from ..._values.owner import Owner
from ...exceptions import LockNotAcquired
from ..all_or_none import AllOrNone
from ..cooling import cooling_times
from ..lease import Lease
from ..use import Use
from .drive import drive, finish, in_thread

if sys.version_info >= (3, 11):
    from typing import Unpack
else:  # asgiref requires it there.
    from typing_extensions import Unpack

__all__ = ["AcquireOptions", "AsyncVerbs", "left"]


class AcquireAllOptions(TypedDict, total=False):
    """The options of `LockService.acquire_all`, one by one."""

    ttl: float | None
    wait: float | None
    renew: bool


class AcquireOptions(AcquireAllOptions, total=False):
    """The options of `LockService.acquire`, one by one."""

    slots: int
    hold_at_least: float


def left(use: Use) -> Callable[[bool], None]:
    """What undoes the taking of ``use``: `drive` calls it."""

    def undo(taken: bool) -> None:
        if taken:
            use.cool(None)
            use.leave(failed=True)
        use.drop()

    return undo


class AsyncVerbs(AllOrNone):
    """The verbs that begin with an "a": what the one without it does, for ``await``.

    The calls to the store are made in a few threads, and so are those of the signals' receivers:
    they must not count on the thread of the event loop. Who waits holds no thread. Whoever is
    cancelled leaves the wait queue, and a lease that was granted meanwhile is released.
    """

    async def aacquire(self, name: str, **options: Unpack[AcquireOptions]) -> Lease | None:
        """`acquire`, with the same options."""
        use, times = Use(None), cooling_times(options.pop("hold_at_least", 0))
        await drive(self.alias, self._acquiring(name, use, times, **options), left(use))
        return self._taken(use, times)

    async def aacquire_all(
        self, names: builtins.list[str] | tuple[str, ...], **options: Unpack[AcquireAllOptions]
    ) -> builtins.list[Lease] | None:
        """`acquire_all`, with the same options."""
        parts: builtins.list[Use] = []

        def undo(_taken: bool) -> None:
            for part in reversed(parts):
                part.drop()

        try:
            return await drive(self.alias, self._taking_all(names, parts, **options), undo)
        except LockNotAcquired:
            return None

    async def ais_locked(self, name: str) -> bool:
        """`is_locked`."""
        return await self.aget(name) is not None

    async def aget(self, name: str) -> LockInfo | None:
        """`get`."""
        return await in_thread(self.alias, lambda: self._self.get(name))

    async def awaiters(self, name: str) -> builtins.list[Owner]:
        """`waiters`."""
        return await in_thread(self.alias, lambda: self._self.waiters(name))

    async def alist(
        self, prefix: str = "", limit: int | None = None, offset: int = 0
    ) -> builtins.list[LockInfo]:
        """`list`."""
        return await in_thread(self.alias, lambda: self._self.list(prefix, limit, offset))

    async def acount(self, prefix: str = "") -> int:
        """`count`."""
        return await in_thread(self.alias, lambda: self._self.count(prefix))

    async def ahistory(
        self, name: str | None = None, task_id: str | None = None, limit: int = 100
    ) -> builtins.list[Event]:
        """`history`."""
        return await in_thread(self.alias, lambda: self._self.history(name, task_id, limit))

    async def aclear(
        self,
        name: str,
        token: str | None = None,
        *,
        by: str | None = None,
        digest: str | None = None,
    ) -> bool:
        """`clear`. It is cleared even if the caller is cancelled meanwhile."""
        return await finish(self.alias, lambda: self._self.clear(name, token, by=by, digest=digest))

    @property
    def _self(self) -> Any:
        """This, as the `LockService` that it is a part of."""
        return self
