"""``lock()``: a lease for the length of a block or of a call."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from copy import copy
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)
from weakref import ref

from asgiref.sync import iscoroutinefunction

from .._values.arguments import check_known, checked_several, checked_template
from .._values.lock_info import LockInfo
from .._values.owner import strand_name
from .._values.signatures import is_generator, signature_of
from ..exceptions import LockNotAcquired
from .acquiring import Acquiring, How, acquire_all, is_own
from .aio import drive, finish
from .lease import Lease, Use
from .names import NameTemplate
from .service import LockOptions
from .waiting import Steps, blocking

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")
R = TypeVar("R")
Held = TypeVar("Held")
Names = list[str] | tuple[str, ...]

FORGOTTEN_F = re.compile(r"\{[A-Za-z_]\w*([.\[][^{}]*)?(![rsa])?(:[^{}]*)?\}").search
OWN = "by this very thread; reentrant=True lets it take the lock again"
EACH = "call lock() for each block"
# What somebody tries who takes `lock()` for a lock object of another library.
INSTEAD = {
    "acquire": "locks.acquire(name, wait=...) returns a lease, or None",
    "release": "the end of the block releases it; a lease of locks.acquire(name) has release()",
    "locked": "locks.is_locked(name) says whether it is taken",
    "extend": "the lease has it: with lock(name) as lease",
}


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
    name: str, *, on_conflict: Literal["raise"] = "raise", **options: Unpack[LockOptions]
) -> LockContext[Lease]: ...
@overload
def lock(
    name: Names, *, on_conflict: Literal["raise"] = "raise", **options: Unpack[LockOptions]
) -> LockContext[list[Lease]]: ...
@overload
def lock(
    name: str | Names, *, on_conflict: Literal["skip"], **options: Unpack[LockOptions]
) -> SkippingDecorator: ...
def lock(
    name: str | Names,
    *,
    on_conflict: Literal["raise", "skip"] = "raise",
    **options: Unpack[LockOptions],
) -> Any:
    """Hold the lock ``name`` for a block (``with``, ``async with``) or for each call of a function
    (``@``, also over ``async def``).

    Args:
        name: the lock's name. For a decorator, a template that the arguments of each call fill,
            such as ``"report:{date}"``. Of several names, in a list or tuple, all are held or none;
            the block gets a list of the leases, in the order of the names.
        on_conflict: "raise". Or "skip", for a decorator: a call returns None if the lock is taken.
        ttl: seconds that the lease lasts. None: the store's TTL.
        wait: seconds to wait for the lock, or for several locks together. 0, the default: do not
            wait. None: wait for ever.
        renew: extend the lease for as long as the block runs. True by default.
        store: an alias of the setting.
        slots: how many may hold the lock at once, from 1 to 1000. Above 1, each of them holds a
            permit, ``NAME#1`` to ``NAME#N``. A permit is a lock of its own, and nobody holds the
            lock ``NAME`` itself. Each caller takes one of its own first N.
        reentrant: the thread, greenlet or asyncio task that holds the lock may take it again. The
            inner block gets the lease as it is, whatever its own ``ttl``, ``wait`` and ``renew``
            say. The outermost block releases.
        hold_at_least: seconds after the acquire for which the lock stays taken.
        cooldown: seconds for which the lock stays taken after a block that succeeded.
        cooldown_after_error: seconds for which it stays taken after a block that raised an error.

    Of the last three the longest counts; of blocks that share a lease, those of the outermost.

    Call `lock` for each block. If several blocks share one object, an exception from a signal
    handler may leave a lock behind, at the very beginning or end of a block. If blocks of one
    thread share it that overlap, as in two generators, the second one raises `RuntimeError`; so
    does each block of that thread after such an exception.

    Raises `TypeError` or `ValueError` for a wrong argument. The block or call raises:

    * `LockNotAcquired` if the lock is still taken after ``wait``. At once, if a block of this very
      thread or task has the lock.
    * `StoreUnavailable` if the store does not answer.
    * `LeaseLost` at its end, if the lease was lost and the block raised nothing itself. At its
      beginning, if it would share a lease that is lost.
    * `InvalidLockConfig` if the lock is to cool, and its store cannot do that.

    With ``async with``, and over ``async def``, nothing blocks the event loop, and a waiter holds
    no thread. The lock is released, or the wait queue left, however the task ends. A ``with`` that
    would wait on a running event loop raises Django's ``SynchronousOnlyOperation``.
    """
    if not options.keys() <= OPTIONS.keys():
        check_known("lock", options, OPTIONS)
    return LockContext(name, on_conflict, **options)


OPTIONS = LockOptions.__annotations__
# The blocks with ``reentrant=True`` around this code, the innermost last. Each says of which thread
# or task it is: a new one begins with a copy of the context that it was started in, and a forked
# child with that of its parent.
_blocks: ContextVar[tuple[ref[Use], ...]] = ContextVar("tasklock_blocks", default=())


class _Skipped(LockNotAcquired):
    """The lock is taken, and the call that asked for it is skipped: only its wrapper sees this."""


class LockContext(Generic[Held]):
    """What `lock` returns. ``template`` is what the name was filled from."""

    # That of the `Use` of a block.
    _who = ""
    # Whether its name has no fields any more.
    _filled = False

    def __init__(
        self,
        name: Any,
        on_conflict: str = "raise",
        template: Any = None,
        **options: Unpack[LockOptions],
    ) -> None:
        several = isinstance(name, list | tuple)
        if several:
            checked_several(name)
        for one in name if several else (name,):
            checked_template(one)
        options.setdefault("renew", True)
        self._how = How(**options)
        if several and self._how.slots > 1:
            raise ValueError("slots must be 1 with several names: they are held all or none")
        if on_conflict not in ("raise", "skip"):
            raise ValueError(f'on_conflict must be "raise" or "skip", not {on_conflict!r}')
        self.name, self.template = tuple(name) if several else name, template
        self._skips = on_conflict == "skip"
        # Of the blocks that it holds now, the last one last.
        self._uses: list[Use] = []

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "lock() takes no lock before the block begins: write `with lock(...)`, or "
            "`if lease := locks.acquire(...)`"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            mend = INSTEAD.get(name)
            raise AttributeError(f"lock() has no {name}{f': {mend}' if mend else ''}")

    def __enter__(self) -> Held:
        self._check_block()
        use = Use(self._who)
        held: Held = blocking(self._taking(use))
        self._note(use)
        return held

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._last().end(failed=kind is not None)

    async def __aenter__(self) -> Held:
        self._check_block()
        use = Use(self._who)
        held: Held = await drive(self._how.store, self._taking(use), use.drop)
        self._note(use)
        return held

    async def __aexit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        use = self._last()
        # A coroutine that is closed cannot wait: the renewal thread gives its leases back.
        if not isinstance(error, GeneratorExit):
            call = functools.partial(use.end, failed=error is not None)
            await finish(self._how.store, call)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return ``function`` under the lock, with a lease of its own for each call."""
        called = _called(function)
        mend = _mend(function, called)
        if mend:
            name = getattr(function, "__qualname__", function)
            raise TypeError(f"lock() cannot hold a lock for {name}: {mend}")
        fill = _filling(self.name, signature_of(function))

        def block(args: Any, kwargs: Any) -> LockContext[Held]:
            filled = copy(self)
            filled.name, filled.template, filled._uses = fill(args, kwargs), self.name, []
            filled._filled = True
            return filled

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> Any:
            with suppress(_Skipped), block(args, kwargs):
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def locked_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            with suppress(_Skipped):
                async with block(args, kwargs):
                    return await cast("Any", function(*args, **kwargs))

        is_async = iscoroutinefunction(function) or iscoroutinefunction(called)
        return cast("Callable[P, R]", locked_async if is_async else locked)

    def _check_block(self) -> None:
        if self._filled:
            return
        if self._skips:
            raise TypeError('on_conflict="skip" is for the decorator: use locks.acquire in a block')
        for name in (self.name,) if isinstance(self.name, str) else self.name:
            if FORGOTTEN_F(name):
                raise ValueError(
                    f"the name {name!r} has a field, which only a decorator fills. In a block "
                    f'write an f-string: lock(f"{name}")'
                )

    def _note(self, use: Use) -> None:
        if self._uses and not self._how.reentrant and any(map(use.is_beside, self._uses)):
            # The other one's lease is over, or it has another permit. Of two blocks that are not
            # one in the other, nobody could tell which of them ends.
            use.drop()
            raise RuntimeError(f"this thread is in a block of this lock() already: {EACH}")
        self._uses.append(use)
        if self._how.reentrant:
            alive = [each for each in _blocks.get() if each() is not None]
            _blocks.set((*alive, ref(use)))

    def _last(self) -> Use:
        """The block that ends: the last one of this thread or task, or else the only one."""
        uses = self._uses[::-1]  # Once: other threads may come and go.
        if not uses:
            raise RuntimeError("this lock() was left already, or never entered")
        last = uses[0]
        if len(uses) > 1:
            who = strand_name()
            found = [use for use in uses if use.strand == who]
            if not found:
                raise RuntimeError(f"this thread is in no block of this lock(): {EACH}")
            last = found[0]
        self._uses.remove(last)
        return last

    def _taking(self, use: Use) -> Steps[Any]:
        """Take the lock, or the locks, for ``use``. Returns what the block gets. Raises
        `LockNotAcquired`."""
        how, name = self._how, self.name
        shared = self._shared(use) if how.reentrant else {}
        use.shared.extend(shared.values())
        won: Any = {}
        if isinstance(name, str):
            won = shared.get(name) or (
                yield from Acquiring(how, name, use, template=self.template).steps()
            )
        elif wanted := [each for each in name if each not in shared]:
            templates = dict(zip(name, self.template or (), strict=False))
            won = yield from acquire_all(how, wanted, use, templates)
        if isinstance(won, LockInfo):
            taken = name if isinstance(name, str) else won.name
            own = is_own(won, how.store, use.strand)
            refused = _Skipped if self._skips else LockNotAcquired
            raise refused(taken, won, OWN if own else "")
        return won if isinstance(name, str) else [(shared | won)[each] for each in name]

    def _shared(self, use: Use) -> dict[str, Lease]:
        """The leases of these locks that a block of this thread or task has. Raises `LeaseLost` if
        one of them is lost."""
        found: dict[str, Lease] = {}
        names = (self.name,) if isinstance(self.name, str) else self.name
        others = [other for each in _blocks.get() if (other := each()) is not None]
        for other in filter(use.is_beside, others):
            for lease in (*other.leases, *other.shared):
                name = lease.base_name if self._how.slots > 1 else str(lease.name)
                plain = (lease.slot is None) is (self._how.slots == 1)
                mine = lease.store == self._how.store and plain and name in names
                if mine and lease.is_here() and not lease.ended_well:
                    lease.assert_held()
                    found[name] = lease
        return found


def _filling(name: Any, signature: inspect.Signature) -> Callable[[Any, Any], Any]:
    """What makes the name, or the names, for one call of a decorated function."""
    if isinstance(name, str):
        return NameTemplate(name, signature).fill
    templates = [NameTemplate(each, signature) for each in name]
    return lambda args, kwargs: tuple(each.fill(args, kwargs) for each in templates)


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
            "it is a Celery task, and only direct calls of it would take the lock. "
            "Use base=LockedTask, or put @shared_task above @lock."
        )
    if isinstance(called, type):
        return "a call of a class only makes an object. Decorate the method that does the work."
    if is_generator(called):
        return "a generator's body runs after the call. Use `with lock(...)` inside the body."
    return None
