"""``lock()``: a lease for the length of a block or of a call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Literal, ParamSpec, TypeVar

from .arguments import checked_flag, checked_template, checked_ttl, checked_wait
from .conf import DEFAULT_ALIAS
from .exceptions import LockNotAcquired
from .lease import Lease
from .naming import NameTemplate
from .service import LockService
from .use import ByHand, Exit, Use, entering

__all__ = ["LockContext", "lock"]

P = ParamSpec("P")
R = TypeVar("R")
OnConflict = Literal["raise", "skip"]


def lock(
    name: str,
    *,
    ttl: float | None = None,
    wait: float | None = 0,
    renew: bool = True,
    store: str = DEFAULT_ALIAS,
    on_conflict: OnConflict = "raise",
) -> LockContext:
    """Hold the lock ``name`` for a block (``with``) or for each call of a function (``@``).

    ``ttl`` is in seconds (by default the store's TTL). ``wait``: seconds to wait for the lock;
    0 does not wait, None waits for ever. With ``renew`` the lease is extended for as long as
    the block runs. ``store`` is an alias of the setting. As a decorator the name is a template
    that each call's arguments fill, and ``on_conflict="skip"`` returns None instead of
    raising when the lock is taken.

    The block or call raises `LockNotAcquired` if the lock is held by somebody else,
    `LeaseLost` at its end if the lease did not last until then and nothing else was raised,
    and `StoreUnavailable` when the store does not answer.
    """
    checked_template(name)
    if ttl is not None:
        checked_ttl(ttl)
    checked_wait(wait)
    checked_flag("renew", renew)
    if not isinstance(store, str):
        raise TypeError(f"store is an alias, not {store!r}")
    if on_conflict not in ("raise", "skip"):
        raise ValueError(f'on_conflict is "raise" or "skip", not {on_conflict!r}')
    return LockContext(name, ttl, wait, renew, store, on_conflict)


class LockContext:
    """What `lock` returns. It may be used many times, by many threads, generators and tasks: each
    use has a lease of its own."""

    def __init__(
        self,
        name: str,
        ttl: float | None,
        wait: float | None,
        renew: bool,
        store: str,
        on_conflict: OnConflict,
    ) -> None:
        self.name = name
        self.ttl = ttl
        self.wait = wait
        self.renew = renew
        self.service = LockService(store)
        self.on_conflict = on_conflict
        self._by_hand = ByHand()

    def __enter__(self) -> Lease:
        if self.on_conflict == "skip":
            raise TypeError('on_conflict="skip" is for the decorator: a block cannot be skipped')
        found = entering(self._by_hand)
        use = found or Use(self._by_hand)
        try:
            lease = self._acquire(self.name, use)
            if found is None:
                self._by_hand.add(lease)
                use.lease = None
            return lease
        except BaseException:
            use.drop()
            raise

    __exit__ = Exit()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R | None]:
        if (
            inspect.iscoroutinefunction(function)
            or inspect.isgeneratorfunction(function)
            or inspect.isasyncgenfunction(function)
        ):
            raise TypeError(
                f"lock() cannot hold a lock for {function.__qualname__}: such a call returns "
                "before its body runs. Use `with lock(...)` inside the body."
            )
        template = NameTemplate(self.name, inspect.signature(function))

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R | None:
            use = Use(None)
            try:
                self._acquire(template.fill(args, kwargs), use)
            except LockNotAcquired:
                if self.on_conflict == "skip":
                    return None
                raise
            failed = True
            try:
                result = function(*args, **kwargs)
                failed = False
                return result
            finally:
                use.leave(failed=failed)

        return locked

    def _acquire(self, name: str, use: Use) -> Lease:
        won = self.service.contend(name, ttl=self.ttl, wait=self.wait, renew=self.renew, use=use)
        if isinstance(won, Lease):
            return won
        raise LockNotAcquired(name, won)
