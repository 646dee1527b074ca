"""What a store must implement: five methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._values.lock_info import LockInfo
from .values import Grant, Refusal

__all__ = ["REQUIRED", "RequiredMethods"]

REQUIRED = ("acquire", "extend", "release", "clear", "get")


class RequiredMethods:
    """The five methods that a store must implement.

    The arguments were checked before a store is called: ``name`` is a non-empty `str` of at most
    200 printable characters without spaces, ``token`` has 22 characters of A-Z, a-z, 0-9, - and _,
    and ``ttl`` is a number of seconds, at least 0.001.

    Each method raises `StoreUnavailable` when the server does not answer, and nothing else,
    whatever its server or client did. That a lock is held is a return value, never an exception.
    """

    alias: str
    """the store's alias in the settings, for `StoreUnavailable`"""

    def acquire(
        self, name: str, token: str, ttl: float, owner: Mapping[str, Any]
    ) -> Grant | Refusal:
        """Grant the lock if nobody holds it.

        Idempotent for one token: a client that asks again after a lost reply is granted the lock
        again, and the lease then ends ``ttl`` seconds after this call.

        Args:
            name: the lock.
            token: identifies the lease.
            ttl: seconds from now until the lease ends by itself.
            owner: the fields of `Owner`, JSON-able; each text has at most 255 bytes. `get` must
                return them in ``LockInfo.owner``.

        Returns:
            `Grant`, or `Refusal` with what holds the lock.
        """
        raise _missing(self, "acquire")

    def extend(self, name: str, token: str, ttl: float, proof: Any = None) -> bool:
        """Make the lease end ``ttl`` seconds from now, sooner or later than before.

        Args:
            name: the lock.
            token: the lease. It must be enough without the proof.
            ttl: seconds.
            proof: ``Grant.proof``, or None where the caller does not have it.

        Returns:
            False if this lease no longer holds the lock; nothing was changed then.
        """
        raise _missing(self, "extend")

    def release(self, name: str, token: str, proof: Any = None) -> bool:
        """End the lease.

        Args:
            name: the lock.
            token: the lease. It must be enough without the proof.
            proof: ``Grant.proof``, or None where the caller does not have it.

        Returns:
            False if this lease no longer held the lock; nothing was changed then.
        """
        raise _missing(self, "release")

    def clear(self, name: str, token: str | None = None) -> bool:
        """Remove what holds the lock, a key that somebody else set included.

        Args:
            name: the lock.
            token: remove only this lease; None: whatever holds the lock.

        Returns:
            False if nothing was removed.
        """
        raise _missing(self, "clear")

    def get(self, name: str) -> LockInfo | None:
        """What holds the lock, a key that somebody else set included.

        Args:
            name: the lock.

        Returns:
            None if nothing holds it.
        """
        raise _missing(self, "get")


def _missing(store: RequiredMethods, method: str) -> NotImplementedError:
    return NotImplementedError(f"the store {type(store).__name__} does not implement {method}()")
