"""What a test asserts of locks."""

from __future__ import annotations

from .._engine.service import locks
from .._values.lock_info import LockInfo
from ..conf import DEFAULT_ALIAS

__all__ = ["assert_locked", "assert_not_locked"]


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
