"""``lock()``: a lease for the length of a block or of a call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from asgiref.sync import iscoroutinefunction

from .._values.arguments import (
    check_options,
    checked_flag,
    checked_several,
    checked_template,
)
from .._values.signatures import is_generator, signature_of
from .._values.slots import checked_slots
from ..conf import DEFAULT_ALIAS
from ..exceptions import LockNotAcquired
from .aio.blocks import AsyncExit, entered, locked_coroutine
from .cooling import cooling_times
from .cooling_lock import CoolingLock
from .lease import Lease
from .reentrant import ReentrantLock
from .service import LockService
from .several import SeveralLocks
from .steps import blocking
from .taker import OneLock, Taker
from .use import ByHand, Exit, entering

__all__ = ["LockContext", "lock"]

P = ParamSpec("P")
R = TypeVar("R")
Held = TypeVar("Held")
Names = list[str] | tuple[str, ...]
OnConflict = Literal["raise", "skip"]


class SkippingDecorator(Protocol):
    """What `lock` returns with ``on_conflict="skip"``: a decorator, and no context manager."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Callable[P, R | None]: ...
    def __call__(self, function: Callable[P, Any]) -> Callable[P, Any]:
        """Return ``function`` under the lock. A call returns None if the lock is taken."""


@overload
def lock(
    name: str,
    *,
    ttl: float | None = None,
    wait: float | None = 0,
    renew: bool = True,
    store: str = DEFAULT_ALIAS,
    slots: int = 1,
    reentrant: bool = False,
    hold_at_least: float = 0,
    cooldown: float = 0,
    cooldown_after_error: float = 0,
    on_conflict: Literal["raise"] = "raise",
) -> LockContext[Lease]: ...
@overload
def lock(
    name: Names,
    *,
    ttl: float | None = None,
    wait: float | None = 0,
    renew: bool = True,
    store: str = DEFAULT_ALIAS,
    reentrant: bool = False,
    hold_at_least: float = 0,
    cooldown: float = 0,
    cooldown_after_error: float = 0,
    on_conflict: Literal["raise"] = "raise",
) -> LockContext[list[Lease]]: ...
@overload
def lock(
    name: str | Names,
    *,
    ttl: float | None = None,
    wait: float | None = 0,
    renew: bool = True,
    store: str = DEFAULT_ALIAS,
    slots: int = 1,
    reentrant: bool = False,
    hold_at_least: float = 0,
    cooldown: float = 0,
    cooldown_after_error: float = 0,
    on_conflict: Literal["skip"],
) -> SkippingDecorator: ...
def lock(
    name: str | Names,
    *,
    ttl: float | None = None,
    wait: float | None = 0,
    renew: bool = True,
    store: str = DEFAULT_ALIAS,
    slots: int = 1,
    reentrant: bool = False,
    hold_at_least: float = 0,
    cooldown: float = 0,
    cooldown_after_error: float = 0,
    on_conflict: OnConflict = "raise",
) -> LockContext[Lease] | LockContext[list[Lease]] | SkippingDecorator:
    """Hold the lock ``name`` for a block (``with``, ``async with``) or for each call of a function
    (``@``, also over ``async def``).

    ``name``: the lock's name. For a decorator it is a template that the arguments of each call
    fill, such as ``"report:{date}"``. A list or tuple of names is held all or none; the block gets
    the list of the leases, in the order of the names. ``ttl``: seconds that the lease lasts; None,
    the store's TTL. ``wait``: seconds to wait for the lock, or for all of them together; 0 does not
    wait, None waits for ever. ``renew``: extend the lease for as long as the block runs. ``store``:
    an alias of the setting. ``slots``: how many may hold it at once, from 1 to 1000. Above 1, each
    of them holds a permit, which is a lock of its own, ``NAME#1`` to ``NAME#N``, and none holds the
    lock ``NAME`` itself. Callers may give different numbers: each takes one of its own first N.
    ``reentrant``: the thread, greenlet or asyncio task that holds the lock may take it again in the
    same way. The inner block gets the lease that is held, as it is: ``ttl``, ``wait`` and ``renew``
    count where the lock is taken from the store. The last of the blocks to end releases.
    ``hold_at_least``: after its release the lock stays taken until so many seconds after it was
    acquired. ``cooldown`` and ``cooldown_after_error``: until so many seconds after the block
    ended, well or with an error. The longest counts, and of blocks that share a lease what the
    outermost says. ``on_conflict``: with "skip", which is for decorators only, a call returns None
    if the lock is taken.

    Raises `TypeError` or `ValueError` for a wrong argument. The block or call raises
    `InvalidLockConfig` if the lock is to cool and its store cannot do that,
    `LockNotAcquired` if the lock is taken, `StoreUnavailable` if the store does not answer, and
    `LeaseLost` at its end if the lease was lost and the block raised nothing itself. A block that
    would get a lease which is lost already raises `LeaseLost` at its beginning.

    With ``async with``, and over ``async def``, nothing blocks the event loop, and who waits holds
    no thread. The lock is released, or the wait queue left, however the task ends.
    """
    if isinstance(name, list | tuple):
        checked_several(name)
    for one in name if isinstance(name, list | tuple) else (name,):
        checked_template(one)
    check_options(ttl, wait, renew, store)
    if checked_slots(slots) > 1 and isinstance(name, list | tuple):
        raise ValueError("slots is for one name: several names are held whole, all or none")
    checked_flag("reentrant", reentrant)
    if on_conflict not in ("raise", "skip"):
        raise ValueError(f'on_conflict is "raise" or "skip", not {on_conflict!r}')
    times = cooling_times(hold_at_least, cooldown, cooldown_after_error)
    by_one = (ReentrantLock if reentrant else OneLock)(LockService(store), ttl, renew, slots)
    names = tuple(name) if isinstance(name, list | tuple) else name
    taker: Taker[Any] = SeveralLocks(by_one) if isinstance(names, tuple) else by_one
    return LockContext(names, wait, on_conflict, CoolingLock(taker, times) if times else taker)


class LockContext(Generic[Held]):
    """What `lock` returns.

    One object may be used many times, also by several threads, generators and tasks at the same
    time: each use has its own lease.
    """

    def __init__(
        self, name: Any, wait: float | None, on_conflict: OnConflict, taker: Taker[Held]
    ) -> None:
        self.name = name
        self.wait = wait
        self.on_conflict = on_conflict
        self._taker = taker
        self._new_use = taker.new_use
        self._by_hand = ByHand()

    def __enter__(self) -> Held:
        if self.on_conflict == "skip":
            raise TypeError('on_conflict="skip" is for the decorator: a block cannot be skipped')
        found = entering(self)
        use = found or self._new_use(self._by_hand)
        try:
            held = blocking(self._taker.take(self.name, use, self.wait))
            if found is None:
                use.keep()
            return held
        except BaseException:
            use.drop()
            raise

    __exit__ = Exit()

    def __aenter__(self) -> Coroutine[Any, Any, Held]:
        if self.on_conflict == "skip":
            raise TypeError('on_conflict="skip" is for the decorator: a block cannot be skipped')
        return entered(self)

    __aexit__ = AsyncExit()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return ``function`` under the lock, with a lease of its own for each call."""
        called = _called(function)
        mend = _mend(function, called)
        if mend:
            name = getattr(function, "__qualname__", function)
            raise TypeError(f"lock() cannot hold a lock for {name}: {mend}")
        template = self._taker.template(self.name, signature_of(function))
        if iscoroutinefunction(function) or iscoroutinefunction(called):
            coroutine = locked_coroutine(function, template, self, self.on_conflict == "skip")
            return cast("Callable[P, R]", coroutine)

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            use = self._new_use(None)
            use.template = self.name
            try:
                blocking(self._taker.take(template.fill(args, kwargs), use, self.wait))
            except BaseException as error:
                use.drop()
                if isinstance(error, LockNotAcquired) and self.on_conflict == "skip":
                    return cast("R", None)  # As `SkippingDecorator` says.
                raise
            failed = True
            try:
                result = function(*args, **kwargs)
                failed = False
                return result
            finally:
                use.leave(failed=failed)

        return locked


def _called(function: Any) -> Any:
    """What a call of ``function`` runs: of an object that is no function, its ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    is_plain = inspect.isroutine(function) or isinstance(function, type)
    return function if is_plain else type(function).__call__


def _mend(function: Any, called: Any) -> str | None:
    """Why a lock cannot be held for a call, and what to write instead. None if it can."""
    if hasattr(function.__class__, "apply_async"):  # That of a proxy is the task's.
        return (
            "a Celery task, of which only direct calls would be under it. "
            "Use base=LockedTask, or put @shared_task above @lock."
        )
    if isinstance(called, type):
        return "a call of a class only makes an object. Decorate the method that does the work."
    if is_generator(called):
        return "such a call returns before its body runs. Use `with lock(...)` inside the body."
    return None
