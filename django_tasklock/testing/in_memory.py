"""Locks in memory for one test, whatever stores the settings name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.test.utils import override_settings

from .._values.signatures import is_generator
from ..conf import SETTING, configured_stores
from ..stores.memory import MemoryStore
from .situations import assert_locked, assert_not_locked, held, outage

Test = TypeVar("Test", bound=Callable[..., Any])

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


class locks_in_memory(override_settings):
    """Keep the locks of every alias of TASKLOCK in a `MemoryStore` of its own, for the block.

    It begins and ends without locks. KEY_PREFIX, TTL and the option TAKEOVER stay as they are. Also
    a decorator of a test function, which may be ``async``. Raises `InvalidLockConfig` if the
    settings are wrong.
    """

    def __enter__(self) -> LocksInMemory:  # type: ignore[override]
        self.enable()
        return LocksInMemory()

    def enable(self) -> None:
        self.options = {SETTING: _in_memory()}
        super().enable()

    def disable(self) -> None:
        try:
            # Whoever still holds a lease, or waits, must not go on with it in a later test.
            MemoryStore.clear_all()
        finally:
            super().disable()

    def __call__(self, test: Test) -> Test:
        """Return ``test`` with the block around each call."""
        if is_generator(test) or isinstance(test, type):
            # A call returns before the body, or a test of the class, runs.
            raise TypeError(
                f"locks_in_memory() decorates a test function, and {test.__qualname__} is none: "
                "use it as a context manager"
            )
        decorated: Test = super().__call__(test)
        return decorated


def _in_memory() -> dict[str, dict[str, Any]]:
    """The same aliases, each in memory."""
    found = {}
    for alias, settings in configured_stores().items():
        # The other options are for a server.
        options = {key: value for key, value in settings.options.items() if key == "TAKEOVER"}
        found[alias] = {
            "BACKEND": MEMORY_STORE, "KEY_PREFIX": settings.key_prefix, "TTL": settings.ttl,
            "OPTIONS": options,
        }  # fmt: skip
    return found
