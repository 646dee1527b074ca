"""The lock service: the operations on the locks of one store."""

from __future__ import annotations

import builtins
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict
from weakref import ref

from .._values import clock
from .._values.arguments import (
    check_known,
    checked_name,
    checked_number,
    checked_remark,
    checked_several,
    checked_text,
    checked_ttl,
    is_token,
)
from .._values.lock_info import Event, LockInfo
from .._values.owner import Owner, operator_record, recorded
from .._values.tokens import new_token, read_handle
from ..conf import DEFAULT_ALIAS
from ..signals import lock_held, senders, tell
from ..stores import stores
from ..stores.base import BaseStore, Refusal
from ..stores.records import Entry, Held, new_record
from .acquiring import Acquiring, How, acquire_all, clear, extend_handed_over
from .aio import awaited, drive, finish
from .history import finish_writing, note_event
from .keeper import keeper_of
from .lease import Lease, Use
from .own_token import OwnToken
from .waiting import Steps, blocking

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AcquireAllOptions(TypedDict, total=False):
    """The options of `LockService.acquire_all`."""

    ttl: float | None
    wait: float | None
    renew: bool
    max_hold: float | None


class AcquireOptions(AcquireAllOptions, total=False):
    """The options of `LockService.acquire`."""

    slots: int
    hold_at_least: float


class LockedOptions(AcquireOptions, total=False):
    """The options that `lock` and `django_tasklock.tasks.locked` have."""

    store: str
    cooldown: float
    cooldown_after_error: float


class LockOptions(LockedOptions, total=False):
    """The options of `lock`, but for ``on_conflict``."""

    reentrant: bool
    exclusive: bool
    until_commit: bool | str


class LockService:
    """The operations on the locks of one store.

    Every method may raise `StoreUnavailable`, if the store does not answer. That means neither
    "held" nor "not held". A wrong argument raises `TypeError` or `ValueError` before anything is
    sent. With a ``wait``, on a running event loop, those that take locks raise Django's
    ``SynchronousOnlyOperation``.

    A verb that begins with an "a" is awaited, and does what the verb without the "a" does. Threads
    of the package make its calls to the store, and call the receivers of signals. A waiter holds no
    thread. A caller that is cancelled leaves the wait queue; a lease that was granted meanwhile is
    released.
    """

    def __init__(self, alias: str = DEFAULT_ALIAS) -> None:
        self.alias = alias

    def __repr__(self) -> str:
        return f"<LockService {self.alias!r}>"

    @property
    def store(self) -> BaseStore:
        """The store behind the alias. Raises `InvalidLockConfig` if the settings are wrong."""
        return stores[self.alias]

    def using(self, alias: str) -> LockService:
        """Return the service of another store. Raises `InvalidLockConfig` for an unknown alias."""
        service = LockService(alias)
        _ = service.store
        return service

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            said = f"locks has no {name}: a lease of locks.acquire() has release() and extend()"
            raise AttributeError(said, name=name, obj=self)

    # ------------------------------------------------------------------------------ acquiring

    def acquire(self, name: str, **options: Unpack[AcquireOptions]) -> Lease | None:
        """Take the lock ``name``. Returns the lease; None if the lock is still held after ``wait``.

        Args:
            name: the lock's name.
            ttl: seconds that the lease lasts. None: the store's TTL.
            wait: seconds to wait for the lock. 0: do not wait. None: wait for ever.
            renew: extend the lease until it is released or garbage-collected, or its process ends.
            slots: how many may hold the lock at once, as for `lock`.
            hold_at_least: seconds after the acquire for which the lock stays taken.
            max_hold: seconds after the grant at which the lease ends at the latest, as for `lock`.

        Raises `InvalidLockConfig` for ``hold_at_least`` on a store that cannot do that.
        """
        use = Use()  # It lives until the lease is alone.
        won = blocking(self._acquiring(name, use, options))
        return won.alone() if isinstance(won, Lease) else None

    async def aacquire(self, name: str, **options: Unpack[AcquireOptions]) -> Lease | None:
        """`acquire`, with the same options."""
        use = Use()
        won = await drive(self.alias, self._acquiring(name, use, options), use.drop)
        return won.alone() if isinstance(won, Lease) else None

    def _acquiring(self, name: str, use: Use, options: AcquireOptions) -> Steps[Lease | LockInfo]:
        check_known("acquire", options, AcquireOptions.__annotations__)
        return Acquiring(How(self.alias, **options), name, use).steps()

    def acquire_all(
        self, names: builtins.list[str] | tuple[str, ...], **options: Unpack[AcquireAllOptions]
    ) -> builtins.list[Lease] | None:
        """Take several locks, all or none. Returns their leases in the order of ``names``.

        Returns None if one of the locks is still held after ``wait``; then none is taken. A name
        that comes twice has one lease, which the list has twice.

        Args:
            names: the locks, in any order.
            ttl: seconds that each lease has before it when this returns. None: the store's TTL.
            wait: seconds to wait for all of them together. 0: do not wait. None: wait for ever.
            renew, max_hold: as for `acquire`.
        """
        use = Use()
        return _in_order(names, blocking(self._acquiring_all(names, use, options)))

    async def aacquire_all(
        self, names: builtins.list[str] | tuple[str, ...], **options: Unpack[AcquireAllOptions]
    ) -> builtins.list[Lease] | None:
        """`acquire_all`, with the same options."""
        use = Use()
        steps = self._acquiring_all(names, use, options)
        return _in_order(names, await drive(self.alias, steps, use.drop))

    def _acquiring_all(
        self, names: Sequence[str], use: Use, options: AcquireAllOptions
    ) -> Steps[dict[str, Lease] | LockInfo]:
        checked_several(names)
        check_known("acquire_all", options, AcquireAllOptions.__annotations__)
        return acquire_all(How(self.alias, **options), names, use, {})

    # ----------------------------------------------------------------------------- handing on

    def adopt(self, handle: str, renew: bool = False) -> Lease | None:
        """Go on under a lease that `Lease.detach` has handed on, perhaps in another process.

        Returns a lease with the same token and fence, held by this process. It lasts as long as
        the lease that was detached, counted from now, and keeps its ``max_hold``, by the wall
        clocks of the two hosts. Returns None if the lease is over, or was adopted before: of
        several callers with one handle, one gets the lease.

        Args:
            handle: what `Lease.detach` returned. It says which store it is of. A handle is no
                secret, and no proof of a right: whoever has it can adopt the lease.
            renew: extend the lease, as for `acquire`.

        The signal `lock_acquired` is not sent, since the lock was acquired once.

        Raises `TypeError` or `ValueError` if ``handle`` is no handle, `InvalidLockConfig` for the
        alias of an unknown store, and `StoreUnavailable`. After that the lease may be adopted
        without anybody who knows; it ends with its ttl then.
        """
        use = Use()
        lease = self.try_adopt(handle, use, use.record(), How(renew=renew))
        return lease and lease.alone()

    def adopt_again(self, lease: Lease, handle: str, *, renew: bool) -> None:
        """Hold a lease again that this process has detached, unless somebody has adopted it, or it
        is over. Raises `StoreUnavailable`."""
        use = Use()
        adopted = self.try_adopt(handle, use, lease._own.record, How(renew=renew))
        if adopted is not None:
            before, own = lease._own, adopted._own
            lease._own, own.lease, own.since = own, ref(lease), before.since
            # Last: if that is interrupted, it is given up.
            own.alarm, own.of, own.bare = before.alarm, before.of, before.bare

    def try_adopt(
        self, handle: str, use: Use, owner: Mapping[str, Any], how: How, template: Any = None
    ) -> Lease | None:
        """As `adopt`, for a block with this record. Of ``how``, renew and max_hold count."""
        said = read_handle(handle)
        store = stores[said.alias]
        name = store.keyed(said.name)
        record = dict(owner)
        if said.slots is not None:
            record["slots"] = said.slots
        keeper = keeper_of(store)
        of = ref(use, keeper.jobs.vanished.append)
        own = OwnToken(of, (name,), said.token, said.ttl, record, renew=how.renew)
        asked, held = clock.now(), Held(said.token, said.mark)
        own.limit = asked + min(said.limit - time.time(), how.max_hold or math.inf)
        record["ttl"] = own.ttl = ttl = own.bounded(said.ttl, asked)
        record["renew"] = how.renew if own.limit == math.inf else None
        grant = store.rewrite(name, held, ttl, record, new_token())
        if grant is None or clock.now() >= asked + ttl:
            return None
        own.left = grant.left
        keeper.enter(own)
        lease = Lease(keeper, own, said.alias, grant.fence or said.fence, template)
        use.leases.append(lease)
        keeper.granted(own, asked + ttl)
        note_event(store, "adopted", said.name, record)
        return lease

    # ------------------------------------------------------------------------- for operators

    def is_locked(self, name: str) -> bool:
        """Return whether anything holds the lock, also a key that other code set."""
        return self.get(name) is not None

    def get(self, name: str) -> LockInfo | None:
        """Return what holds the lock; None if nothing does."""
        return self.store.find(checked_name(name))

    def waiters(self, name: str) -> builtins.list[Owner]:
        """Return the owners in the lock's wait queue, the next one first: at most 100. Those who
        wait for a permit of ``name`` are among them.

        On a store that polls the list is empty. A waiter that died stays in the queue until the
        lock would be handed to it, and is removed then.
        """
        return self.store.waiters(checked_name(name))

    def list(
        self, prefix: str = "", limit: int | None = None, offset: int = 0
    ) -> builtins.list[LockInfo]:
        """Return the live locks whose names begin with ``prefix``, the soonest to expire first.

        Args:
            prefix: "" is the beginning of every name.
            limit: how many to return at most. None: all.
            offset: how many to leave out at the start.

        Raises `ListingNotSupported` on a store that cannot list.
        """
        if limit is not None:
            limit = checked_number(limit, "limit")
        offset = checked_number(offset, "offset")
        return self.store.page(checked_text(prefix, "a prefix"), limit, offset)

    def count(self, prefix: str = "") -> int:
        """Return how many live locks have names that begin with ``prefix``.

        Raises `ListingNotSupported` on a store that cannot list.
        """
        return self.store.count(checked_text(prefix, "a prefix"))

    def clear(
        self,
        name: str,
        token: str | None = None,
        *,
        by: str | None = None,
        digest: str | None = None,
    ) -> bool:
        """Remove whatever holds the lock, because an operator decided so.

        Args:
            name: the lock.
            token: remove only the lease with this token.
            by: who clears the lock, for the log.
            digest: of a `LockInfo` without a token: remove only a key that still has this value.

        Returns False if nothing was removed.
        """
        store = self.store
        checked_name(name)
        if digest is not None:
            checked_text(digest, "a digest")
        if token is not None and not is_token(checked_text(token, "a token")):
            return False  # No lease has it; a store may look for a part of a record.
        return clear(store, name, token, digest, store.find(name), by=by)

    def hold(
        self, name: str, ttl: float, by: str = "", reason: str = "", *, wait: float | None = 0
    ) -> LockInfo | None:
        """Take the lock ``name`` for an operator, so that no job takes it. Returns what holds it
        now; None if somebody else, or another hold, still holds it after ``wait``.

        Args:
            name: the lock.
            ttl: seconds that the hold lasts. Nobody renews it, it outlives this process, and
                `clear` ends it earlier.
            by: the operator's name, which is shown to whoever looks. ``by`` and ``reason`` may be
                empty, and have at most 255 bytes of UTF-8 and no control characters.
            reason: why the lock is held.
            wait: seconds to wait until the present holder has ended. 0: do not wait. None: wait for
                ever.

        Raises `StoreUnavailable`; the lock is not held then, or not for long.
        """
        answer = self.try_hold(name, ttl, by, reason, wait=wait)
        return None if isinstance(answer, Refusal) else answer

    def try_hold(
        self, name: str, ttl: float, by: str = "", reason: str = "", *, wait: float | None = 0
    ) -> LockInfo | Refusal:
        """As `hold`, but return a `Refusal` with the present holder where that returns None."""
        store, use = self.store, Use()
        record = operator_record(checked_remark(by, "by"), checked_remark(reason, "a reason"))
        how = How(self.alias, checked_ttl(ttl), wait)
        won = blocking(Acquiring(how, name, use, record=record).steps())
        if isinstance(won, LockInfo):
            return Refusal((won,))
        extend_handed_over(won)
        written = new_record(won.token, record)
        info = store.info(Entry(won.name, written, won.remaining, won.fence))
        won.outlives()
        by_whom, why = by or None, reason or None
        note_event(store, "held", name, info.owner, seconds=ttl, by=by_whom, reason=why)
        tell(lock_held, name=name, store=store.alias, holder=info, ttl=ttl)
        return info

    def history(
        self, name: str | None = None, task_id: str | None = None, limit: int = 100
    ) -> builtins.list[Event]:
        """Return what happened to the locks, the newest first: refusals, skipped tasks, long waits,
        losses, and what operators did. A lock that was taken and released with nobody in the way is
        not there.

        Args:
            name: only events of this lock and of its permits (``slots=N``). None: of all locks.
            task_id: only what happened to the task with this id: that it was skipped or refused, by
                whom and why, or that it lost its lock. What others met because the task held a lock
                is left out.
            limit: how many to return at most. The store keeps the newest, of all locks together.

        What happened in other processes may be there two seconds later. Refusals of one process and
        task id are one event for each second: its ``count`` says how many.

        Raises `ListingNotSupported` on a store that keeps no history.
        """
        if name is not None:
            checked_name(name)
        if task_id is not None:
            if not checked_text(task_id, "a task id"):
                raise ValueError("a task id must not be empty")
            task_id = recorded(task_id)
        checked_number(limit, "limit")
        store = self.store
        finish_writing(store)
        return store.events(name, task_id, limit)

    # ------------------------------------------------------------------ for code on an event loop

    ais_locked = awaited(is_locked)
    aget = awaited(get)
    awaiters = awaited(waiters)
    alist = awaited(list)  # noqa: A003 - the verb
    acount = awaited(count)
    ahistory = awaited(history)
    # It is cleared even if the caller is cancelled meanwhile.
    aclear = awaited(clear, finish)


senders.append(LockService)
locks = LockService()


def _in_order(names: Sequence[str], won: dict[str, Lease] | LockInfo) -> list[Lease] | None:
    return None if isinstance(won, LockInfo) else [won[name].alone() for name in names]
