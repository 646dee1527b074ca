"""Locks in memory for one test, whatever stores the settings name."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar, cast

from asgiref.sync import iscoroutinefunction
from django.test.utils import override_settings

from .._values.signatures import is_generator
from ..conf import SETTING, configured_stores
from ..stores.memory import MemoryStore
from .situations import assert_locked, assert_not_locked, held, outage

P = ParamSpec("P")
R = TypeVar("R")

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


class InMemory(AbstractContextManager[LocksInMemory]):
    """What `locks_in_memory` returns."""

    def __enter__(self) -> LocksInMemory:
        self._settings = override_settings(**{SETTING: _in_memory()})
        self._settings.enable()
        return LocksInMemory()

    def __exit__(self, *_exc: object) -> None:
        try:
            # Whoever still holds a lease, or waits, must not go on with it in a later test.
            MemoryStore.clear_all()
        finally:
            self._settings.disable()

    def __call__(self, test: Callable[P, R]) -> Callable[P, R]:
        """Return ``test`` with a block of its own for each call."""
        if is_generator(test) or isinstance(test, type):
            # A call returns before the body, or a test of the class, runs.
            raise TypeError(
                f"locks_in_memory() decorates a test function, and {test.__qualname__} is none: "
                "use it as a context manager"
            )
        if iscoroutinefunction(test):

            @functools.wraps(test)
            async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                with locks_in_memory():
                    return await cast("Awaitable[Any]", test(*args, **kwargs))

            return cast("Callable[P, R]", run_async)

        @functools.wraps(test)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with locks_in_memory():
                return test(*args, **kwargs)

        return run


def locks_in_memory() -> InMemory:
    """Keep the locks of every alias of TASKLOCK in a `MemoryStore` of its own, for the block.

    It begins and ends without locks. KEY_PREFIX, TTL and the option TAKEOVER stay as they are. Also
    a decorator of a test function, which may be ``async``. Raises `InvalidLockConfig` if the
    settings are wrong.
    """
    return InMemory()


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
