"""A lock that somebody else holds, an outage, and what a test asserts of locks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from .._engine.service import locks
from .._values.arguments import checked_name, checked_ttl
from .._values.lock_info import LockInfo
from .._values.owner import recorded
from .._values.tokens import new_token
from ..conf import DEFAULT_ALIAS
from ..exceptions import LockNotAcquired, StoreUnavailable
from ..stores.base import BaseStore, Refusal

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
