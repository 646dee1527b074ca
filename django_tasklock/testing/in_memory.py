"""Locks in memory for one test, whatever stores the settings name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.test.utils import override_settings

from ..conf import SETTING, configured_stores
from ..stores.memory import MemoryStore
from .assertions import assert_locked, assert_not_locked
from .situations import held, outage

__all__ = ["LocksInMemory", "locks_in_memory"]

MEMORY_STORE = "django_tasklock.stores.memory.MemoryStore"


class LocksInMemory:
    """The helpers of this package, for those who get them from the fixture ``tasklock``."""

    assert_locked = staticmethod(assert_locked)
    assert_not_locked = staticmethod(assert_not_locked)
    held = staticmethod(held)
    outage = staticmethod(outage)

    def clear(self) -> None:
        """Forget all locks, waiters, notes and reservations."""
        MemoryStore.clear_all()


@contextmanager
def locks_in_memory() -> Iterator[LocksInMemory]:
    """Keep the locks of every alias of TASKLOCK in a `MemoryStore` of its own, for the block.

    It begins and ends without locks. KEY_PREFIX, TTL and the option TAKEOVER stay as they are. Also
    a decorator of a test function. Raises `InvalidLockConfig` if the settings are wrong.
    """
    with override_settings(**{SETTING: _in_memory()}):
        try:
            yield LocksInMemory()
        finally:
            # Whoever still holds a lease, or waits, must not go on with it in a later test.
            MemoryStore.clear_all()


def _in_memory() -> dict[str, dict[str, Any]]:
    return {
        alias: {
            "BACKEND": MEMORY_STORE,
            "KEY_PREFIX": settings.key_prefix,
            "TTL": settings.ttl,
            # The others are for a server.
            "OPTIONS": {
                option: value for option, value in settings.options.items() if option == "TAKEOVER"
            },
        }
        for alias, settings in configured_stores().items()
    }
