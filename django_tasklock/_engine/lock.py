"""``with lock()``: a lease, or several, for the length of a block."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, overload
from weakref import ref

from django.db import transaction

from .._compat.django import is_until_commit
from .._values.arguments import check_known, checked_several, checked_template, permit_names
from .._values.lock_info import LockInfo
from .._values.owner import strand_name
from .._values.signatures import signature_of
from ..exceptions import LockNotAcquired, StoreUnavailable
from ..stores import stores
from .acquiring import Acquiring, How, acquire_all, is_own
from .aio import drive, finish
from .decorator import Around, P, R, SkippingDecorator, refuse
from .lease import Lease, Use
from .service import LockOptions
from .waiting import Steps, blocking

if TYPE_CHECKING:
    from typing_extensions import Unpack

Held = TypeVar("Held")
Names = list[str] | tuple[str, ...]


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
            permit, ``NAME#1`` to ``NAME#N``, which is a lock of its own. Each caller takes one of
            its own first N. While anything holds the lock ``NAME`` itself, no permit is granted.
        exclusive: with ``slots``: a writer, beside readers that hold a permit each. It takes the
            lock ``NAME``, which keeps newcomers out, and then all permits as they come free. The
            block gets the lease of ``NAME``.
        reentrant: the thread, greenlet or asyncio task that holds the lock may take it again. The
            inner block gets the lease as it is, whatever its own ``ttl``, ``wait``, ``renew`` and
            ``max_hold`` say. The outermost block releases.
        max_hold: seconds after the grant at which the lease ends at the latest, however it is
            extended: it is lost then. A longer ``ttl`` is cut to it. None: no limit.
        until_commit: in a transaction of Django's, ``atomic()``, release the lock after its commit,
            or its rollback, and not at the end of the block. True: of the default database. A str:
            of the database with this alias. It implies ``reentrant``; in a transaction only blocks
            that both have the same ``until_commit`` share a lease. At its end the block extends the
            lease once more: what is lost by then raises `LeaseLost`, what is lost later nothing.
            Without a transaction it changes nothing.
        hold_at_least: seconds after the acquire for which the lock stays taken.
        cooldown: seconds for which the lock stays taken after a block that succeeded.
        cooldown_after_error: seconds for which it stays taken after a block that raised an error.

    Of the last three the longest counts; of blocks that share a lease, those of the outermost.
    With ``until_commit``, ``cooldown`` begins with the release.

    Call `lock` for each block. If several blocks share one object, an exception from a signal
    handler may leave a lock behind, at the very beginning or end of a block. If blocks of one
    thread share it that overlap, as in two generators, the second one raises `RuntimeError`; so
    does each block of that thread after such an exception.

    Raises `TypeError` or `ValueError` for a wrong argument, and `InvalidLockConfig` for an unknown
    database. The block or call raises:

    * `LockNotAcquired` if the lock is still taken after ``wait``. At once, if a block of this very
      thread or task has the lock.
    * `StoreUnavailable` if the store does not answer.
    * `LeaseLost` at its end, if the lease was lost and the block raised nothing itself. At its
      beginning, if it would share a lease that is lost.
    * `InvalidLockConfig` if the lock is to cool, and its store cannot do that.
    * `TypeError` with ``until_commit`` on an event loop, or after ``set_autocommit(False)``; and
      for a coroutine that a function returned which is not ``async``.

    With ``async with``, and over ``async def``, nothing blocks the event loop, and a waiter holds
    no thread. The lock is released, or the wait queue left, however the task ends. A ``with`` that
    would wait on a running event loop raises Django's ``SynchronousOnlyOperation``.
    """
    if not options.keys() <= OPTIONS.keys():
        check_known("lock", options, OPTIONS)
    return LockContext(name, on_conflict, **options)


OPTIONS = LockOptions.__annotations__
FIELD = re.compile(r"\{[A-Za-z_]\w*([.\[][^{}]*)?(![rsa])?(:[^{}]*)?\}")
EACH = "call lock() for each block"


class LockContext(Generic[Held]):
    """What `lock` returns: each ``with`` begins a `Block`, and ``@`` makes an `Around`."""

    def __init__(
        self, name: Any, on_conflict: str = "raise", **options: Unpack[LockOptions]
    ) -> None:
        several = isinstance(name, list | tuple)
        if several:
            checked_several(name)
        elif callable(name):
            raise TypeError('@lock needs the name of a lock: write @lock("a name")')
        self._names = tuple(name) if several else (name,)
        for each in self._names:
            checked_template(each)
        options.setdefault("renew", True)
        self._how = How(**options)
        if several and self._how.slots > 1:
            raise ValueError("slots must be 1 with several names: they are held all or none")
        if on_conflict not in ("raise", "skip"):
            raise ValueError(f'on_conflict must be "raise" or "skip", not {on_conflict!r}')
        self.name = self._names if several else name
        self._skips = on_conflict == "skip"
        # Those that go on, the last one last.
        self._blocks: list[Block] = []

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "lock() takes no lock before the block begins: write `with lock(...)`, or "
            "`if lease := locks.acquire(...)`"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            # What somebody tries who takes this for a lock object of another library.
            mend = {
                "acquire": ": locks.acquire(name, wait=...) returns a lease, or None",
                "release": ": the end of the block does it; a lease of locks.acquire() has it",
                "locked": ": locks.is_locked(name) says whether it is taken",
                "extend": ": the lease has it: with lock(name) as lease",
            }
            raise AttributeError(f"lock() has no {name}{mend.get(name, '')}")

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return ``function`` under the lock, with a lease of its own for each call."""
        refuse(function)
        make = partial(Block, self._how, None)
        locked = Around(function, self.name, signature_of(function), make)
        locked.reads_orm = False
        locked.answered = (LockNotAcquired,) if self._skips else ()
        return locked.wrapped()

    def __enter__(self) -> Held:
        block = self._new_block()
        return self._begun(block, blocking(block.steps()))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What the block's own does, without a call of it: a free lock's calls are counted.
        block = self._last()
        if block.lasting:
            block.check_kept(failed=kind is not None)
        block.end(failed=kind is not None)

    async def __aenter__(self) -> Held:
        self._how.refuse_async()
        block = self._new_block()
        return self._begun(block, await drive(self._how.store, block.steps(), block.drop))

    async def __aexit__(self, *error: Any) -> None:
        await self._last().__aexit__(*error)

    def _new_block(self) -> Block:
        if self._skips:
            raise TypeError('on_conflict="skip" is for the decorator: use locks.acquire in a block')
        for name in self._names:
            if FIELD.search(name):
                raise ValueError(
                    f"the name {name!r} has a field, which only a decorator fills. In a block "
                    f'write an f-string: lock(f"{name}")'
                )
        return Block(self._how, self.name)

    def _begun(self, block: Block, held: Held) -> Held:
        if self._blocks and not self._how.reentrant and any(map(block.is_beside, self._blocks)):
            # The other block's lease is over, or it has another permit. Of two blocks that are not
            # one in the other, nobody could tell which of them ends.
            block.drop()
            raise RuntimeError(f"this thread is in a block of this lock() already: {EACH}")
        self._blocks.append(block)
        return held

    def _last(self) -> Block:
        """The block that ends: the last one of this thread or task, or else the only one."""
        blocks = self._blocks[::-1]  # Once: other threads may come and go.
        if len(blocks) > 1:
            who = strand_name()
            blocks = [block for block in blocks if block.strand == who]
        if not blocks:
            raise RuntimeError(f"this thread is in no block of this lock(): {EACH}")
        self._blocks.remove(blocks[0])
        return blocks[0]


# The blocks with ``reentrant=True`` around this code, the innermost last, and what is kept until a
# commit. Each says of which thread or task it is: a new one begins with a copy of the context that
# it was started in, and a forked child with that of its parent.
_outer: ContextVar[tuple[ref[Block | Kept], ...]] = ContextVar("tasklock_blocks", default=())


class Kept(Use):
    """What a block with ``until_commit`` has acquired, until its transaction is committed.

    Django's hook is all that refers to it. After a rollback, also to a savepoint, Django forgets
    the hook: nobody needs the leases any more, and the store's thread gives them back. It is made
    after the acquire, of which an error that was handled may keep the frames.
    """

    has_begun = quiet = True

    def __init__(self, block: Block) -> None:
        super().__init__("a transaction")
        self.database = block.database
        # The block does not need them any more.
        for lease in block.leases:
            lease._own.of = ref(self, lease._keeper.jobs.vanished.append)
        self.leases, block.leases = block.leases, []
        _outer.set((*_outer.get(), ref(self)))
        # A method: Django reads its name. At the block's beginning: what that tells Django to do
        # after the commit comes after it.
        transaction.on_commit(self.release, using=str(self.database))

    def release(self) -> None:
        """The hook. What is committed stays so: a lost lease is only told, by signal and log."""
        self.end(failed=False)


class Block(Use):
    """One block or call under a lock, or several: `steps` acquires them, its end releases them.

    ``name`` is a str, or a list or tuple of several. ``who`` and ``said``: as for `Use`.
    """

    # What the name was filled from.
    template: Any = None
    # The arguments of a call.
    args: Any = ()
    kwargs: Any = None
    # Whether it has begun: the locks are its own, until its end.
    has_begun = False
    # Whether it is on an event loop.
    awaits = False
    # In a transaction with ``until_commit``: what it holds until the commit, and what of that it
    # has acquired itself.
    lasting: Sequence[Lease] = ()
    kept: Sequence[Lease] = ()
    # What its error says where another block of this thread or task has the lock.
    hint = "by this very thread; reentrant=True, or until_commit=True of both, lets it in again"

    def __init__(self, how: How, name: Any, who: str = "", **said: Any) -> None:
        super().__init__(who, **said)
        self.how, self.name, self.database = how, name, how.until_commit
        if how.reentrant:
            others = [each for each in _outer.get() if each() is not None]
            _outer.set((*others, ref(self)))

    def steps(self) -> Steps[Any]:
        """Acquire the locks. Returns the lease, or a list of them. Raises `LockNotAcquired`."""
        several = isinstance(self.name, list | tuple)
        in_transaction = isinstance(self.database, str) and is_until_commit(self.database)
        leases = self._shared(in_transaction) if self.how.reentrant else {}
        for lease in leases.values():
            lease.assert_held()
            self.shared.append(lease)
        if several or self.how.exclusive:
            won = yield from self._acquire_all(leases)
        elif self.name in leases:
            won = leases[self.name]
        else:
            won = yield from Acquiring(self.how, self.name, self, self.template).steps()
        if isinstance(won, LockInfo):
            hint = self.hint if self.how.slots == 1 else "by this very thread: to wait is in vain"
            own = is_own(won, self.how.store, self.strand)
            name = won.name if several else self.name
            raise LockNotAcquired(name, won, hint if own else "")
        if in_transaction:
            if self.leases:
                self.kept = Kept(self).leases
                self.shared.extend(self.kept)
            self.lasting = self.shared
        self.has_begun = True
        return won[0] if self.how.exclusive else won

    def _names(self) -> Sequence[str]:
        """The locks that the block holds. Of a writer the lock itself comes first, and then all
        permits."""
        if self.how.exclusive:
            return [self.name, *permit_names(self.name, self.how.slots)]
        return (self.name,) if isinstance(self.name, str) else self.name

    def _acquire_all(self, leases: dict[str, Lease]) -> Steps[Any]:
        """Acquire the locks that are not among ``leases``. Returns all, or what holds one."""
        names, how = self._names(), self.how
        templates = dict(zip(names, self.template or (), strict=False))
        wanted = [name for name in names if name not in leases]
        if how.exclusive:
            how = replace(how, slots=1, exclusive=False)
            templates = {self.name: self.template}
            # Of two readers that become writers, each would wait for the permit of the other.
            for holder in stores[how.store].find_many(wanted):
                if holder is not None and is_own(holder, how.store, self.strand):
                    return holder
        if wanted:
            won = yield from acquire_all(how, wanted, self, templates)
            if isinstance(won, LockInfo):
                return won
            leases = leases | won
        return [leases[name] for name in names]

    def _shared(self, in_transaction: bool) -> dict[str, Lease]:
        """The leases of these locks that the blocks around this one have; ``in_transaction``: those
        that last until its commit."""
        found, names = dict[str, Lease](), self._names()
        for each in _outer.get():
            other = each()
            if other is None or not other.has_begun:
                continue
            if in_transaction and other.database != self.database:
                continue
            for lease in (*other.leases, *other.shared):
                name = str(lease.base_name)
                plain = self.how.slots == 1 or self.how.exclusive
                alike = lease.store == self.how.store and (lease.slot is None) is plain
                if not alike or name not in names or not self.is_beside(other):
                    continue
                if lease.is_here() and not lease.ended_well:
                    found[name] = lease
        return found

    def check_kept(self, *, failed: bool) -> None:
        """See at the end of the block whether what lasts until the commit is still there."""
        for lease in self.kept if failed else self.lasting:
            if failed:
                lease.end_block(failed=True)  # Also after a rollback, the lock cools.
                continue
            with suppress(StoreUnavailable):  # By our clock it is held.
                lease.extend()

    def __enter__(self) -> Block:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.lasting:
            self.check_kept(failed=kind is not None)
        self.end(failed=kind is not None)

    async def __aenter__(self) -> Block:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        # A coroutine that is closed cannot wait: the renewal thread gives its leases back.
        if not isinstance(error, GeneratorExit):
            await finish(self.how.store, partial(self.end, failed=error is not None))
