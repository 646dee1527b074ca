"""Acquiring a lock: the token, the owner's record, the question, the takeover from a dead owner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import ref

from django.db import DEFAULT_DB_ALIAS, connections
from django.dispatch import Signal

from .._values import clock
from .._values.arguments import (
    checked_flag,
    checked_name,
    checked_seconds,
    checked_slots,
    checked_text,
    checked_token,
    checked_ttl,
    checked_wait,
    is_name,
    permit_names,
)
from .._values.lock_info import LockInfo
from .._values.owner import HELD_BY, INSIDE, Owner, place, this_process
from .._values.tokens import new_token
from ..conf import DEFAULT_ALIAS
from ..exceptions import InvalidLockConfig, StoreUnavailable
from ..signals import lock_acquired, lock_cleared, lock_contended, lock_unavailable, tell
from ..stores import stores
from ..stores.base import BaseStore, Grant, Note, Question, Refusal
from .history import note_event
from .keeper import keeper_of
from .lease import Lease, Use
from .own_token import Cooling, CoolingTimes, OwnToken
from .waiting import Attempt, Steps, always_late, ask, refuse_on_loop

# A caller that got its lock after a longer wait is an event.
LONG_WAIT_SECONDS = 1.0
# One of several leases, or one that was handed over, is extended in the end if less than this share
# of its ttl is left.
FULL_SHARE = 0.95
BY_TAKEOVER = "takeover, its owner being gone"
BY_WORKER = "the worker, whose pool child is dead"
BY_RUN = "its own run, which had lost it"
# A clear that is not an operator's is counted as one of these.
CAUSES = {BY_TAKEOVER: "takeover", BY_WORKER: "worker", BY_RUN: "run"}


@dataclass(eq=False, repr=False, slots=True)
class How:
    """How a lock is acquired: the options of `lock`, checked when this is made.

    ``store`` is an alias, ``ttl`` None for the store's; ``until_commit`` becomes the alias of a
    database. Raises `TypeError` or `ValueError` for a wrong option, and `InvalidLockConfig` for an
    unknown database.
    """

    store: str = DEFAULT_ALIAS
    ttl: float | None = None
    wait: float | None = 0
    renew: bool = False
    slots: int = 1
    reentrant: bool = False
    hold_at_least: float = 0
    cooldown: float = 0
    cooldown_after_error: float = 0
    max_hold: float | None = None
    exclusive: bool = False
    until_commit: bool | str = False
    cooling: CoolingTimes | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        # Most callers give nothing but a few whole seconds to wait, which need no further check.
        wait: Any = self.wait
        if type(wait) is not int or not 0 <= wait < 1e308:
            checked_wait(wait)
        if self.ttl is not None:
            checked_ttl(self.ttl)
        if self.max_hold is not None:
            checked_ttl(self.max_hold, "max_hold")
        if self.store != DEFAULT_ALIAS:
            checked_text(self.store, "store")
        for option in ("renew", "reentrant", "exclusive"):
            if type(getattr(self, option)) is not bool:
                checked_flag(getattr(self, option), option)
        if self.until_commit is True:
            self.until_commit = DEFAULT_DB_ALIAS
        if self.until_commit is not False:
            self.reentrant = True
            if checked_text(self.until_commit, "until_commit") not in connections:
                raise InvalidLockConfig(f"there is no database {self.until_commit!r}")
        if type(self.slots) is not int or self.slots != 1:
            checked_slots(self.slots)
        elif self.exclusive:
            raise ValueError("exclusive=True needs the slots of the others, such as slots=8")
        times = self.hold_at_least, self.cooldown, self.cooldown_after_error
        if times != (0, 0, 0):
            self.cooling = CoolingTimes(*map(checked_seconds, times, CoolingTimes._fields))

    def refuse_async(self) -> None:
        """Raise `TypeError` if the lock cannot be taken on an event loop."""
        if self.until_commit:
            raise TypeError("until_commit is for sync code: Django's transactions are not async")


class Acquiring:
    """One acquire of a lock, for a block or call that has a `Use`.

    ``template``: what the name was filled from. ``token``: one that `new_token` made, for a process
    that releases what another process acquires. ``note``: the store writes it with the lease, on
    most stores in the same round trip, unless its key, that of `BaseStore.keyed_note`, has another
    text: `Use.note_kept`. ``record``: the owner's; None: that of `Use.record`; it is changed.
    ``tries``: how often its message was requeued.
    """

    def __init__(
        self, how: How, name: str, use: Use, template: str | None = None, token: str | None = None,
        note: Note | None = None, record: dict[str, Any] | None = None, tries: int = 0,
    ) -> None:  # fmt: skip
        self.how, self.name, self.use, self.template = how, name, use, template
        self.token, self.note, self.record, self.tries = token, note, record, tries

    def steps(self) -> Steps[Lease | LockInfo]:
        """Acquire the lock. Returns the lease, or what held the lock in the end.

        Raises `StoreUnavailable`, besides what `begin` raises.
        """
        self.begin()
        how, own, store = self.how, self.own, self.keeper.store
        question = Question(own.names, own.token, own.ttl, own.record, own.note)
        waiter = met = None
        try:
            if how.wait != 0:
                waiter = store.waiter(question)
            answer, asked, queued = ask(store, question, waiter)
            if isinstance(answer, Refusal):
                deadline = math.inf if how.wait is None else self.began + how.wait
                attempt = Attempt(store, question, waiter, deadline, _take_over, self._in_vain)
                answer, asked = yield from attempt.steps(answer, asked, queued)
                met = attempt.met
            if isinstance(answer, Grant) and how.slots > 1:
                answer = self._unless_it_runs(answer)
            if isinstance(answer, Refusal):
                return self.refused(answer.holder)
            return self.granted(answer, asked, met)
        except BaseException as error:
            # The lock may have been handed over just before: the waiter leaves, and the keeper
            # gives the token back.
            if waiter is not None:
                waiter.quit()
            self.failed(error)
            raise

    def begin(self) -> None:
        """Put the token into the table of its store, before it is sent.

        Raises `TypeError` or `ValueError` for a wrong name or token, `InvalidLockConfig` if the
        store cannot let the lock cool, and what `refuse_on_loop` raises.
        """
        how, name, note = self.how, self.name, self.note
        if how.wait != 0:
            refuse_on_loop()
        if type(name) is not str or not is_name(name):
            checked_name(name)
        token = new_token() if self.token is None else checked_token(self.token)
        names = (name,) if how.slots == 1 else permit_names(name, how.slots)
        store = stores[how.store]
        if how.cooling is not None:
            how.cooling.check(store)
        ttl = min(how.ttl or store.settings.ttl, how.max_hold or math.inf)
        record = self.use.record() if self.record is None else self.record
        # With a `max_hold` the last extensions are shorter: it is not seen that one is missing.
        record["ttl"], record["renew"] = ttl, how.renew if how.max_hold is None else None
        if how.slots > 1:
            record["slots"] = how.slots
        self.began, self.keeper = clock.now(), keeper_of(store)
        of = ref(self.use, self.keeper.jobs.vanished.append)
        keyed = tuple(map(store.keyed, names))
        self.own = OwnToken(of, keyed, token, ttl, record, note, how.renew)
        self.keeper.enter(self.own)

    def granted(self, grant: Grant, since: float, met: LockInfo | None = None) -> Lease:
        """Return the lease, which began at ``since``, on `clock.now`. ``met``: the holder for
        which it waited."""
        how, keeper, own = self.how, self.keeper, self.own
        store, note = keeper.store, own.note
        own.names, own.left, own.note = (grant.name,), grant.left, None
        if how.cooling is not None:
            own.cooling = Cooling(how.cooling)
        # A lock that was waited for was granted later than the question was asked.
        own.limit = (since if met is None else clock.now()) + (how.max_hold or math.inf)
        lease = Lease(keeper, own, how.store, grant.fence, self.template)
        self.use.leases.append(lease)
        keeper.granted(own, since + own.ttl)
        if note is not None and not grant.noted:
            self.use.note_kept = store.reserve(note.key, note.text, note.ttl) is not None
        if HELD_BY in own.record:
            return lease  # An operator's hold has a signal and an event of its own.
        waited = clock.now() - self.began
        if waited > LONG_WAIT_SECONDS and how.wait != 0:
            note_event(store, "waited", own.name, own.record, seconds=waited)
        if lock_acquired.receivers:
            tell(lock_acquired, lease=lease, template=self.template, waited=waited, holder=met)
        return lease

    def refused(self, holder: LockInfo) -> LockInfo:
        """Note that ``holder`` has the lock, and return it."""
        self.keeper.forget(self.own)
        waited, record, store = clock.now() - self.began, self.own.record, self.keeper.store
        if self.tries & (self.tries + 1) == 0:  # All looks of many messages would be a flood.
            note_event(store, "refused", self.name, record, holder=holder, seconds=waited)
        self._tell(lock_contended, holder=holder, owner=Owner.from_record(record))
        return holder

    def failed(self, error: BaseException) -> None:
        """Give the token up: the store may have granted it, though its answer was not read. The
        lock does not cool, since nothing was done under it."""
        self.own.cooling = None
        self.keeper.give_up(self.own)
        if isinstance(error, StoreUnavailable):
            self._tell(lock_unavailable, error=error)

    def _in_vain(self, holder: LockInfo) -> bool:
        """Whether there is no use in waiting for this holder."""
        if self.how.slots == 1 or holder.name == self.name:
            return is_own(holder, self.how.store, self.use.strand)
        return _is_other_run(holder, self.own)

    def _unless_it_runs(self, grant: Grant) -> Grant | Refusal:
        """Release a permit if another run of the same message has one. A plain lock would have
        excluded this run; here another permit was free."""
        store, own = self.keeper.store, self.own
        if "task_id" in own.record:
            for holder in store.find_many(own.names):
                if holder is not None and _is_other_run(holder, own):
                    store.release(grant.name, own.token)
                    return Refusal((holder,))
        return grant

    def _tell(self, signal: Signal, **said: Any) -> None:
        tell(
            signal, name=self.name, store=self.how.store, template=self.template,
            waited=clock.now() - self.began, wait=self.how.wait, **said,
        )  # fmt: skip


def acquire_all(
    how: How, names: Sequence[str], use: Use, templates: Mapping[str, str]
) -> Steps[dict[str, Lease] | LockInfo]:
    """Acquire several locks, all or none, with one ``wait``. Returns the leases by name, or what
    held one of the locks. ``templates``: what the names were filled from, by name. Raises as
    `Acquiring.steps` does.

    If a lease is lost before all are there, the others are released, and that one counts as held.
    """
    began, in_order = clock.now(), sorted(set(map(checked_name, names)))
    several = [Acquiring(how, name, use, templates.get(name)) for name in in_order]
    try:
        leases = {} if len(several) == 1 else _at_once(several)
        won = leases or (yield from _in_turn(several, began))
        if isinstance(won, dict):
            for lease in won.values():
                lease.renewed(how.renew)
                if lease.remaining < lease.ttl * FULL_SHARE:
                    lease.extend()
            lost = [lease.name for lease in won.values() if not lease.held]
            if not lost:
                return won
            unknown = LockInfo(lost[0], 0.0, None, None, Owner(), how.store, "")
            won = stores[how.store].find(lost[0]) or unknown
        for lease in use.leases:
            lease.cool(None)
        use.end(failed=True)  # What cannot be released now is given up.
        return won
    except BaseException:
        use.drop()  # Before the error, which refers to the block, is forgotten.
        raise


def extend_handed_over(lease: Lease) -> Lease:
    """Return the lease, extended if it was handed over: that counts from the waiter's question. If
    the store does not answer, what is left of it is left."""
    if lease.remaining < lease.ttl * FULL_SHARE:
        with suppress(StoreUnavailable):
            lease.extend()
    return lease


def _at_once(several: Sequence[Acquiring]) -> dict[str, Lease]:
    """Ask for all in one round trip. Returns no lease where the store cannot do that, or one of the
    locks is held."""
    for each in several:
        each.begin()
    first, asked = several[0], clock.now()
    store, ttl = first.keeper.store, first.own.ttl
    try:
        tokens = {each.own.name: each.own.token for each in several}
        grants = store.acquire_all(tokens, ttl, first.own.record)
        if grants is None or isinstance(grants, Refusal):
            for each in several:
                each.keeper.forget(each.own)
            return {}
        if clock.now() >= asked + ttl:
            raise always_late(store, ttl)
        pairs = zip(several, grants, strict=True)
        return {each.name: each.granted(grant, asked) for each, grant in pairs}
    except BaseException as error:
        for each in several:
            each.own.cooling = None
            each.keeper.give_up(each.own)
        first.failed(error)
        raise


def _in_turn(several: Sequence[Acquiring], began: float) -> Steps[dict[str, Lease] | LockInfo]:
    """Acquire one after the other. All callers do that in one order, so that no two of them wait
    for each other. While one is waited for, the leases of the others are renewed."""
    how, leases = several[0].how, dict[str, Lease]()
    for each in several:
        left = None if how.wait is None else max(0.0, how.wait - (clock.now() - began))
        each.how = replace(how, wait=left, renew=how.renew or len(several) > 1)
        won = yield from each.steps()
        if isinstance(won, LockInfo):
            return won
        leases[each.name] = won
    return leases


def is_own(holder: LockInfo, alias: str, strand: str) -> bool:
    """Whether a block of this very thread or task has the lock, so that to wait is in vain."""
    own = None if holder.token is None else keeper_of(stores[alias]).table.get(holder.token)
    use = None if own is None else own.of()
    return isinstance(use, Use) and use.strand == strand


def _is_other_run(holder: LockInfo, own: OwnToken) -> bool:
    """Whether another run of the same message has the permit."""
    task_id, owner = own.record.get("task_id"), holder.owner
    if task_id is None or task_id != owner.task_id or INSIDE in own.record or holder.cooling:
        return False
    return holder.token != own.token and owner.alive() is not False


def clear(
    store: BaseStore, name: str, token: str | None, digest: str | None, holder: LockInfo | None,
    *, by: str | None,
) -> bool:  # fmt: skip
    """Remove what holds a lock, and tell of it. Returns False if nothing was removed.

    ``token`` and ``digest``: remove only that. ``holder``: what was found there. ``by``: what
    clears it, for the log.
    """
    if not store.clear(name, token, digest):
        return False
    owner = Owner() if holder is None else holder.owner
    if by == BY_TAKEOVER:
        note_event(store, "taken over", name, owner, by=place(Owner.from_record(this_process())))
    else:
        note_event(store, "cleared", name, owner, by=by)
    tell(
        lock_cleared, name=name, store=store.alias, token=token, holder=holder, by=by,
        cause=CAUSES.get(by or "", "cleared"),
    )  # fmt: skip
    return True


def _take_over(store: BaseStore, holder: LockInfo) -> bool:
    """Clear the lock if its owner is known to be dead. Returns whether to ask again."""
    if not store.takeover or holder.token is None or holder.owner.alive() is not False:
        return False
    now = store.find(holder.name)
    if now is not None and (now.token, now.owner) != (holder.token, holder.owner):
        return True  # Its lease goes on in another process, or without one.
    # Also if nobody holds the lock: of a quorum, a few members may still have that lease, and
    # refuse, because its process ended before they answered its release.
    if clear(store, holder.name, holder.token, None, holder, by=BY_TAKEOVER):
        return True
    # Another process has cleared it, or is about to. In a plain cache it may die over that.
    now = store.find(holder.name)
    return now is None or now.token != holder.token
