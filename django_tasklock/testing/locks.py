"""Locks for one test: in memory, held by somebody, in an outage; and what is asserted of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

from django.test.utils import override_settings

from .._engine.service import locks
from .._values.arguments import checked_name, checked_ttl
from .._values.lock_info import LockInfo
from .._values.owner import recorded
from .._values.signatures import is_generator
from .._values.tokens import new_token
from ..conf import DEFAULT_ALIAS, SETTING, configured_stores
from ..exceptions import LockNotAcquired, StoreUnavailable
from ..stores.base import BaseStore, Refusal
from ..stores.memory import MemoryStore

Test = TypeVar("Test", bound=Callable[..., Any])

MEMORY_STORE = "django_tasklock.stores.memory.MemoryStore"
# These ask no server.
NO_VERBS = ("close_idle", "granted", "info", "key", "keyed", "keyed_note")


@contextmanager
def held(
    name: str,
    *,
    by: str = "another-host",
    task: str | None = None,
    task_id: str | None = None,
    ttl: float = 86400.0,
    store: str = DEFAULT_ALIAS,
) -> Iterator[LockInfo]:
    """Have somebody else hold the lock ``name`` for the block.

    ``by`` is the host of that holder, whose process nobody here can judge, so that it is not taken
    over; ``task`` and ``task_id`` are recorded for it. ``ttl``: seconds, after which the lock ends
    even within the block. The block gets the `LockInfo`. At its end the lock is released to the
    next waiter, if it has not been cleared.

    Raises `LockNotAcquired` if the lock is held already, and `StoreUnavailable`.
    """
    checked_name(name)
    checked_ttl(ttl)
    service = locks.using(store)
    used, token = service.store, new_token()
    record: dict[str, Any] = {"host": recorded(by), "pid": 1, "ttl": ttl, "renew": False}
    record["task"] = None if task is None else recorded(task)
    record["task_id"] = None if task_id is None else recorded(task_id)
    answer = used.acquire([name], token, ttl, record)
    if isinstance(answer, Refusal):
        raise LockNotAcquired(name, answer.holder)
    try:
        info = used.find(name)
        assert info is not None, "it ended at once"
        yield info
    finally:
        used.release(name, token)


@contextmanager
def outage(store: str = DEFAULT_ALIAS) -> Iterator[None]:
    """Have the store of this alias raise `StoreUnavailable` for every verb in the block.

    Locks that are held stay held, and cannot be renewed or released meanwhile. All threads of this
    process see the outage, but on a server's store not those that wait already. A change of
    TASKLOCK or CACHES in the block makes a new store, which answers. Blocks may be nested.
    """
    silent = locks.using(store).store

    def unavailable(*_args: Any, **_options: Any) -> Any:
        raise StoreUnavailable(silent.alias, "a test has made an outage")

    raisers: dict[str, Any] = dict.fromkeys(_verbs(silent), unavailable)
    with patch.multiple(silent, **raisers):
        yield


def _verbs(store: BaseStore) -> list[str]:
    """The methods of the contract that ask the server. What the store leaves to the defaults calls
    one of the others, or says that it cannot be done."""
    contract = [name for name in dir(BaseStore) if not name.startswith("_")]
    own = [name for name in contract if getattr(type(store), name) is not getattr(BaseStore, name)]
    return [name for name in own if callable(getattr(store, name)) and name not in NO_VERBS]


def assert_locked(name: str, *, store: str = DEFAULT_ALIAS) -> LockInfo:
    """Raise `AssertionError` unless somebody holds the lock ``name`` of the store's alias.

    Returns what holds it. Raises `StoreUnavailable` if the store does not answer.
    """
    info = locks.using(store).get(name)
    if info is None:
        raise AssertionError(f"nobody holds the lock {name!r} in the store {store!r}")
    return info


def assert_not_locked(name: str, *, store: str = DEFAULT_ALIAS) -> None:
    """Raise `AssertionError` if anybody holds the lock ``name`` of the store's alias.

    Raises `StoreUnavailable` if the store does not answer.
    """
    info = locks.using(store).get(name)
    if info is not None:
        owner = "other code" if info.token is None else info.owner
        state = "is cooling down, after" if info.cooling else "is held by"
        raise AssertionError(f"the lock {name!r} in the store {store!r} {state} {owner}")


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
