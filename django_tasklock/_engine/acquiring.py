"""Acquiring: the token, the owner's record, the question, and the takeover from a dead owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import ref

from .._compat.running_task import running_task
from .._values import clock
from .._values.arguments import (
    LONGEST_TTL_SECONDS,
    check_options,
    checked_flag,
    checked_name,
    checked_token,
    is_name,
)
from .._values.lock_info import LockInfo
from .._values.owner import HELD_BY, INSIDE, Owner, owner_record, place
from .._values.slots import checked_slots, permit_names
from .._values.tokens import new_token
from ..conf import DEFAULT_ALIAS
from ..exceptions import StoreUnavailable
from ..signals import lock_acquired, lock_cleared, lock_contended, lock_unavailable
from ..stores import stores
from ..stores.base import BaseStore, Grant, Note, Refusal
from .cooling import Cooling, CoolingTimes
from .history import note_event
from .keeper import Entry, Keeper, keeper_of
from .lease import Lease, Use
from .waiting import Attempt, Steps, always_late

__all__ = [
    "BY_RUN",
    "BY_TAKEOVER",
    "BY_WORKER",
    "How",
    "acquire",
    "acquire_all",
    "is_own",
    "owner_here",
    "taking",
    "tell_cleared",
]

# Who waited longer, and got the lock, is an event.
LONG_WAIT_SECONDS = 1.0
# A lease that has less than this share of its ttl left, when several are taken, is extended.
FULL_SHARE = 0.95
BY_TAKEOVER = "takeover, its owner being gone"
BY_WORKER = "the worker, whose pool child is dead"
BY_RUN = "its own run, which had lost it"
# What a clear is counted as, that is not an operator's.
CAUSES = {BY_TAKEOVER: "takeover", BY_WORKER: "worker", BY_RUN: "run"}


@dataclass(slots=True)
class How:
    """How locks are taken: the options that all callers have, checked when this is made.

    ``alias`` is that of the store, ``ttl`` None for the store's. ``sender`` is that of the signals.
    Raises `TypeError` or `ValueError` for a wrong option.
    """

    alias: str = DEFAULT_ALIAS
    ttl: float | None = None
    wait: float | None = 0
    renew: bool = False
    slots: int = 1
    cooling: CoolingTimes | None = None
    sender: object = None

    def __post_init__(self) -> None:
        # Most callers give nothing but a few whole seconds to wait, which need no further check.
        wait: Any = self.wait
        plain = type(wait) is int and 0 <= wait <= LONGEST_TTL_SECONDS
        if not plain or self.ttl is not None or self.alias != DEFAULT_ALIAS:
            check_options(self.ttl, wait, self.renew, self.alias)
        checked_flag("renew", self.renew)
        if type(self.slots) is not int or self.slots != 1:
            checked_slots(self.slots)


def owner_here(task: str | None = None, task_id: str | None = None) -> dict[str, Any]:
    """Return the owner's record of a lock that is taken here.

    ``task`` and ``task_id``: those of the task whose own lock it is. Without both, code that runs
    inside a Celery task records that task.
    """
    job = running_task() if task is None and task_id is None else None
    return owner_record(task, task_id) if job is None else owner_record(*job) | {INSIDE: True}


def taking(
    how: How,
    name: str,
    use: Use,
    *,
    task: str | None = None,
    task_id: str | None = None,
    group: int | None = None,
    template: str | None = None,
    token: str | None = None,
    note: Note | None = None,
) -> Steps[Lease | LockInfo]:
    """Return the steps that take a lock for ``use``: see `acquire`. What says who asks is made
    here, by the caller's thread or task; the steps may be made by another thread.

    ``task``, ``task_id`` and ``group`` (the id of a process group) are recorded in the owner; a
    lock without ``task`` and ``task_id`` has those of the Celery task that takes it. ``template``:
    what the name was filled from. ``token``: one that `new_token` made, for a process that releases
    what another process acquires. ``note``: the store writes it with the lease, on most stores in
    the same round trip, unless its key has another text: `Use.note_kept`.

    Raises `TypeError` or `ValueError` for a wrong name or token.
    """
    if type(name) is not str or not is_name(name):
        checked_name(name)
    if token is not None:
        checked_token(token)
    if how.slots > 1:
        permit_names(name, how.slots)
    record = owner_here(task, task_id)
    if group is not None:
        record["group"] = group
    return acquire(how, name, use, record, template=template, token=token, note=note)


def acquire(
    how: How,
    name: str,
    use: Use,
    record: dict[str, Any],
    *,
    template: str | None = None,
    token: str | None = None,
    note: Note | None = None,
) -> Steps[Lease | LockInfo]:
    """Take a lock for ``use``. Returns the lease, or what held the lock in the end.

    ``record`` says who asks; it is changed. For the rest see `taking`. Raises `StoreUnavailable`,
    and `InvalidLockConfig` if the store cannot let the lock cool.
    """
    ask = _Ask(how, name, use, record, template, token, note)
    store, keeper, entry = ask.store, ask.keeper, ask.entry
    deadline = None if how.wait is None else ask.began + how.wait
    in_vain = partial(_in_vain, keeper, use.strand)
    if how.slots > 1:
        in_vain = partial(_is_same_run, record, entry.token)
    attempt = Attempt(
        store, entry.names, entry.token, entry.ttl, record, deadline,
        partial(_take_over, store, how.sender), entry.note, in_vain,
    )  # fmt: skip
    keeper.enter(entry)
    try:
        answer, since = yield from attempt.take()
        if isinstance(answer, Grant) and how.slots > 1 and "task_id" in record:
            others = [other for other in entry.names if other != answer.name]
            same = [info for info in store.find_many(others) if info and in_vain(info)]
            if same:  # A plain lock excludes such a run by itself; here another permit was free.
                store.release(answer.name, entry.token)
                answer = Refusal((same[0],))
        if isinstance(answer, Refusal):
            return ask.refused(answer.holder)
        entry.names = (answer.name,)
        return ask.granted(answer, since, attempt.met)
    except BaseException as error:
        ask.failed(error)
        raise


def acquire_all(
    how: How, names: Sequence[str], use: Use, record: dict[str, Any], templates: Mapping[str, str]
) -> Steps[dict[str, Lease] | LockInfo]:
    """Take several locks, all or none, with one ``wait``. Returns the leases by name, or what held
    one of the locks. ``names`` are different, and in sorted order: no two callers wait for each
    other. ``templates``: what they were filled from, by name. Raises as `acquire` does.

    While one is waited for, the leases of the others are renewed, and in the end they are extended.
    If one is lost all the same, the others are released, and that one counts as held.
    """
    began = clock.now()
    try:
        leases: dict[str, Lease] = {}
        if len(names) > 1:
            leases = _all_at_once([
                _Ask(how, name, use, dict(record), templates.get(name)) for name in names
            ])  # fmt: skip
        for name in names[len(leases) :]:
            left = None if how.wait is None else max(0.0, how.wait - (clock.now() - began))
            each = replace(how, wait=left, renew=how.renew or len(names) > 1)
            won = yield from acquire(each, name, use, dict(record), template=templates.get(name))
            if isinstance(won, LockInfo):
                _release_all(use)
                return won
            leases[name] = won
        for lease in leases.values():
            lease.renewed(how.renew)
            if lease.remaining < lease.ttl * FULL_SHARE:
                lease.extend()
        lost = next((lease for lease in leases.values() if not lease.held), None)
        if lost is None:
            return leases
        _release_all(use)
        holder = stores[lost.store].find(lost.name)
        return holder or LockInfo(lost.name, 0.0, None, None, Owner(), lost.store, "")
    except BaseException:
        use.drop()  # Before the error, which refers to the block, is forgotten.
        raise


def _all_at_once(asks: Sequence[_Ask]) -> dict[str, Lease]:
    """Ask for all in one round trip. Returns no lease where the store cannot do that, or one of
    the locks is held: then they are asked for one after the other."""
    store, first, asked = asks[0].store, asks[0].entry, clock.now()
    for ask in asks:
        ask.keeper.enter(ask.entry)
    try:
        tokens = {ask.entry.name: ask.entry.token for ask in asks}
        found = store.acquire_all(tokens, first.ttl, first.record)
        if found is None or isinstance(found, Refusal):
            for ask in asks:
                ask.keeper.forget(ask.entry)
            return {}
        if clock.now() >= asked + first.ttl:
            raise always_late(store, first.ttl)
        return {ask.name: ask.granted(one, asked) for ask, one in zip(asks, found, strict=True)}
    except BaseException as error:
        for ask in asks[1:]:
            ask.keeper.give_up(ask.entry)
        asks[0].failed(error)
        raise


def is_own(holder: LockInfo, alias: str, who: object) -> bool:
    """Whether a block of this very thread or task has the lock, so that to wait is in vain."""
    return _in_vain(keeper_of(stores[alias]), who, holder)


def tell_cleared(
    store: BaseStore, name: str, token: str | None, holder: LockInfo | None, by: str | None,
    sender: object,
) -> None:  # fmt: skip
    """Send `lock_cleared`."""
    lock_cleared.send_robust(
        sender, name=name, store=store.alias, token=token, holder=holder, by=by,
        cause=CAUSES.get(by or "", "cleared"),
    )  # fmt: skip


class _Ask:
    """One question for a lock: what is known of the token before it is sent, and what is done with
    the answer."""

    def __init__(
        self,
        how: How,
        name: str,
        use: Use,
        record: dict[str, Any],
        template: str | None,
        token: str | None = None,
        note: Note | None = None,
    ) -> None:
        self.how, self.name, self.use, self.template = how, name, use, template
        self.store = store = stores[how.alias]
        self.began = clock.now()
        self.keeper = keeper_of(store)
        if how.cooling is not None:
            how.cooling.check(store)
        ttl = how.ttl or store.settings.ttl
        record["ttl"], record["renew"] = ttl, how.renew
        if how.slots > 1:
            record["slots"] = how.slots
        if note is not None:
            note = note._replace(key=store.keyed_note(note.key))
        names = (name,) if how.slots == 1 else permit_names(name, how.slots)
        keyed = tuple(map(store.keyed, names))
        of = ref(use, self.keeper.vanished.append)
        self.entry = Entry(of, keyed, token or new_token(), ttl, record, note, how.renew)

    def granted(self, grant: Grant, since: float, met: LockInfo | None = None) -> Lease:
        """Return the lease, which began at ``since``, on `clock.now`. ``met``: the holder for
        which it waited."""
        how, store, entry = self.how, self.store, self.entry
        note, entry.note = entry.note, None
        entry.left = grant.left
        if how.cooling is not None:
            entry.cooling = Cooling(how.cooling)
        lease = Lease(self.keeper, entry, how.alias, grant.fence, self.template, how.sender)
        self.use.leases.append(lease)
        self.keeper.granted(entry, since + entry.ttl)
        if note is not None and not grant.noted:
            self.use.note_kept = store.reserve(note.key, note.text, note.ttl) is not None
        if HELD_BY in entry.record:
            return lease  # An operator's hold has a signal and an event of its own.
        waited = clock.now() - self.began
        if waited > LONG_WAIT_SECONDS and how.wait != 0:
            note_event(store, "waited", entry.name, entry.record, seconds=waited)
        if lock_acquired.receivers:
            lock_acquired.send_robust(
                how.sender, lease=lease, template=self.template, waited=waited, holder=met
            )
        return lease

    def refused(self, holder: LockInfo) -> LockInfo:
        """Note that ``holder`` has the lock, and return it."""
        self.keeper.forget(self.entry)
        waited, record = clock.now() - self.began, self.entry.record
        note_event(self.store, "refused", self.name, record, holder=holder, seconds=waited)
        if lock_contended.receivers:
            lock_contended.send_robust(
                self.how.sender, holder=holder, owner=Owner.from_record(record), **self._told()
            )
        return holder

    def failed(self, error: BaseException) -> None:
        """Give the token up: the store may have granted it, though its answer was not read."""
        self.keeper.give_up(self.entry)
        if lock_unavailable.receivers and isinstance(error, StoreUnavailable):
            lock_unavailable.send_robust(self.how.sender, error=error, **self._told())

    def _told(self) -> dict[str, Any]:
        return {
            "name": self.name, "store": self.how.alias, "template": self.template,
            "waited": clock.now() - self.began, "wait": self.how.wait,
        }  # fmt: skip


def _release_all(use: Use) -> None:
    """Release what was taken for nothing; what cannot be released now is given up."""
    for lease in use.leases:
        lease.cool(None)
    use.leave(failed=True)
    use.leases.clear()


def _in_vain(keeper: Keeper, who: object, holder: LockInfo) -> bool:
    entry = None if holder.token is None else keeper.table.get(holder.token)
    use = None if entry is None or entry.bare else entry.of()
    return isinstance(use, Use) and use.strand == who


def _is_same_run(record: Mapping[str, Any], token: str, holder: LockInfo) -> bool:
    """Whether the holder of a permit is another run of the same message."""
    same = record.get("task_id") == holder.owner.task_id is not None and not record.get(INSIDE)
    return same and holder.token != token and holder.owner.alive() is not False


def _take_over(store: BaseStore, sender: object, holder: LockInfo) -> bool:
    """Clear the lock if its owner is known to be dead. Returns whether to ask again."""
    if not store.takeover or holder.token is None or holder.owner.alive() is not False:
        return False
    now = store.find(holder.name)
    if now is not None and (now.token, now.owner) != (holder.token, holder.owner):
        return True  # Its lease goes on in another process, or without one.
    # Also if nobody holds the lock: of a quorum, a few members may still have that lease, and
    # refuse, because its process ended before they answered its release.
    if store.clear(holder.name, holder.token):
        note_event(store, "taken over", holder.name, holder.owner, by=place(Owner.current()))
        tell_cleared(store, holder.name, holder.token, holder, BY_TAKEOVER, sender)
        return True
    # Somebody else has cleared it, or is about to: in a plain cache, that process may die over it.
    now = store.find(holder.name)
    return now is None or now.token != holder.token
