"""`Lease`: what the holder of a lock has; and `Use`: what one block holds."""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from os import getpid
from typing import Any, NoReturn
from weakref import ref

from django.dispatch import Signal

from .._compat.running_task import running_task
from .._values import clock
from .._values.arguments import checked_ttl
from .._values.handle import Handle, new_mark
from .._values.lock_info import kept_key
from .._values.owner import INSIDE, MARK, Owner, owner_record, strand_name
from .._values.slots import base_of, slot_of
from .._values.words import printable
from ..exceptions import LeaseLost, StoreUnavailable
from ..signals import lock_lost, lock_released
from ..stores.base import Note
from ..stores.records import Held
from .aio import finish
from .cooling import Cooling, check_lasts
from .history import note_event
from .keeper import RAN_OUT, Entry, Keeper

logger = logging.getLogger("django_tasklock")

# The states of a lease. It begins as held, and leaves that for good.
HELD, RELEASED, LOST, GIVEN_UP, DETACHED = "held", "released", "lost", "given up", "detached"
WHY = {
    HELD: "it belongs to the parent of this forked process",
    RELEASED: "it was released",
    GIVEN_UP: "its release was interrupted",
    DETACHED: "it was detached",
}

# That of the signals: the class `LockService`. It is above this module; the package puts it here.
sender: Any = None


def tell(signal: Signal, **said: Any) -> None:
    """Send a signal of a lock's life."""
    if signal.receivers:
        signal.send_robust(sender, **said)


class Lease:
    """One timed grant of a lock to one holder.

    The lease is over ``ttl`` seconds after its last grant or extension, counted from the moment
    before that call was sent, by the clock of this process. That is final, whatever the server
    says later.

    A lease belongs to the process that acquired it, and cannot be pickled. ``copy.copy`` and
    ``copy.deepcopy`` return the lease itself. As a context manager it is released at the end of the
    block, which raises `LeaseLost` if the lease was lost and the block raised nothing itself.

    Attributes:
        name: the lock's name; of a permit ``NAME#K``.
        token: random proof of the lease.
        fence: the number of the lease. None on a store without fences.
        store: the alias of the store.
        ttl: the length of the last grant or extension, in seconds.
        renew: whether the lease is extended by itself.
        template: what the name was filled from, such as "video:{video_id}". None: not known.
    """

    __slots__ = (
        "__weakref__", "_entry", "_keeper", "_open", "_reason", "_since", "_state",
        "fence", "name", "store", "template", "token",
    )  # fmt: skip

    def __init__(
        self,
        keeper: Keeper,
        entry: Entry,
        store: str,
        fence: int | None,
        template: str | None = None,
    ) -> None:
        self._keeper, self._entry, self.store = keeper, entry, store
        self.name, self.token = entry.names[0], entry.token
        self.fence, self.template = fence, template
        self._since = clock.now()
        self._state, self._reason = HELD, ""
        # Has one item while the lease may leave `HELD`: who removes it makes that step. No lock:
        # an exception from a signal handler would leave it locked.
        self._open: list[None] = [None]
        entry.holder = ref(self)

    def __repr__(self) -> str:
        return f"<Lease {self.name!r} fence={self.fence} {self._state}>"

    def __copy__(self) -> Lease:
        return self

    def __deepcopy__(self, memo: object) -> Lease:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a lease belongs to its process, and cannot be pickled: hand on lease.detach(), a str"
        )

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        use = Use()
        use.leases.append(self)
        use.leave(failed=kind is not None)

    @property
    def ttl(self) -> float:
        """The length of the last grant or extension, in seconds."""
        return self._entry.ttl

    @property
    def renew(self) -> bool:
        """Whether the lease is extended by itself."""
        return self._entry.renew

    @property
    def slot(self) -> int | None:
        """The number of the permit, from 1; None for the lease of a plain lock."""
        return slot_of(self.name, self._entry.record.get("slots"))

    @property
    def owner(self) -> Owner:
        """The owner that is recorded with the lease."""
        return Owner.from_record(self._entry.record)

    @property
    def held(self) -> bool:
        """Whether the lease still holds the lock, by this process's clock."""
        entry = self._entry
        if self._state != HELD or entry.given_up:
            return False
        if self._keeper.process != getpid() or self._keeper.table.get(self.token) is not entry:
            return False
        if clock.now() < entry.until and (entry.left is None or entry.left() > 0):
            return True
        self.lost(RAN_OUT)
        return False

    @property
    def remaining(self) -> float:
        """The seconds that are left; 0.0 if the lease is not held."""
        if not self.held:
            return 0.0
        left = self._entry.until - clock.now()
        if self._entry.left is not None:
            left = min(left, self._entry.left())
        return max(0.0, left)

    @property
    def detached(self) -> bool:
        """Whether the lease goes on without this process."""
        return self._state == DETACHED

    @property
    def ended_well(self) -> bool:
        """Whether the holder has released the lease, or has detached it."""
        return self._state in (RELEASED, DETACHED)

    @property
    def inherited(self) -> bool:
        """Whether it belongs to the parent of this forked process."""
        return self._keeper.process != getpid()

    @property
    def base_name(self) -> str:
        """The name that the caller gave: of a permit that of all of them."""
        return base_of(self.name, self._entry.record.get("slots"))

    def is_here(self) -> bool:
        """Whether this thread finds the lock under the same key."""
        return kept_key(self._keeper.store.keyed(str(self.name))) == kept_key(self.name)

    def is_of_a_block(self) -> bool:
        """Whether the block that took the lease still goes on."""
        use = self._entry.of()
        return isinstance(use, Use) and self in use.leases

    def assert_held(self) -> None:
        """Raise `LeaseLost` if the lease does not hold the lock any more."""
        if not self.held:
            raise LeaseLost(self.name, self._why())

    def extend(self, ttl: float | None = None) -> bool:
        """Make the lease last ``ttl`` seconds from now. None: as long as last time.

        Returns False if the lease no longer held the lock; nothing was changed then. Raises
        `StoreUnavailable` if the store does not answer: the lease ends at the earlier of its old
        and its new deadline then, unless a later call succeeds. Raises `TypeError` or `ValueError`
        for a wrong ``ttl``.
        """
        keeper, entry = self._keeper, self._entry
        ttl = entry.ttl if ttl is None else checked_ttl(ttl)
        if not self.held:
            return False
        before, ends, held = entry.ttl, math.inf, None
        call = entry.begin_call()
        try:
            # First: an extension by the renewal thread, meanwhile, is to ask for the same.
            entry.ttl = ttl
            if entry.is_next(call, entry.until) and self._state == HELD:
                ends = clock.now() + ttl
                # Before the call: who is interrupted may come to no later instruction.
                entry.until = min(entry.until, ends)
                keeper.plan(entry)
                held = keeper.store.extend(self.name, self.token, ttl)
                if held:
                    entry.until = ends
        finally:
            if held is None:
                # Again: another extension may have been made meanwhile, and this one after it.
                entry.ttl, entry.until = before, min(entry.until, ends)
            del call  # An exception refers to this frame.
        if held is False:
            self.lost("the store no longer has it")
        return bool(held)

    def release(self, _note: Note | None = None) -> bool:
        """Give the lock back, or let it cool (``hold_at_least``, ``cooldown``).

        Returns False if the lease no longer held it; nothing was changed then.

        Raises `StoreUnavailable` if the store does not answer. After that, or if any other
        exception interrupts the call, the lease is given up, and not held any more. The renewal
        thread releases it as soon as the store answers, and it ends at its deadline at the latest.
        A later call asks the store again.
        """
        keeper, entry = self._keeper, self._entry
        try:
            if self._state == GIVEN_UP:
                return keeper.give_back(entry)
            if not self.held or not self._leave(RELEASED):
                return False
            if _note is not None:
                # As the renewal thread, which has no tenant, can write it.
                entry.note = _note._replace(key=keeper.store.keyed_note(_note.key))
            entry.renew = False
            if entry.cooling is not None or not keeper.store.atomic_release:
                # An extension that is under way would write the lease again.
                call = entry.begin_call()
                entry.is_next(call, entry.until)
            released = keeper.give_back(entry)
        except BaseException:
            self.give_up()
            raise
        keeper.forget(entry)
        if not released:
            self._tell_lost("the store no longer had it at its release")
        elif lock_released.receivers:
            self.given_back()
        return released

    def detach(self, ttl: float | None = None) -> str:
        """Let the lease go on without this process. Returns a handle for ``locks.adopt``, with
        which another process, or this one, goes on under it.

        Args:
            ttl: seconds from now until the lease ends, unless somebody adopts it. None: as long as
                last time.

        From then on this process neither holds nor renews the lease: `held` is False, `release`
        returns False, and a block that holds it ends without an error and releases nothing. Nobody
        else gets the lock until the lease ends, or its adopter releases it, whatever becomes of
        this process. The handle is a str of printable ASCII, for JSON or a header. It can be used
        once.

        Raises `LeaseLost` if the lease does not hold the lock, `TypeError` or `ValueError` for a
        wrong ``ttl``, and `StoreUnavailable`. After that, and if any other exception interrupts the
        call, the lease is given up, as by an interrupted `release`.
        """
        keeper, entry = self._keeper, self._entry
        ttl = entry.ttl if ttl is None else checked_ttl(ttl)
        if self.held:
            check_lasts("ttl", ttl, keeper.store)
        record, slots = entry.record, entry.record.get("slots")
        handle = Handle(
            self.store, self.name, self.token, self.fence, new_mark(), float(entry.ttl), slots
        )
        try:
            if not self.held or not self._leave(DETACHED):
                raise LeaseLost(self.name, self._why())
            entry.renew = False
            call = entry.begin_call()
            if not entry.is_next(call, entry.until):
                raise StoreUnavailable(self.store, "it does not answer an extension of the lease")
            # Until then it may be in the store, if it has to be given up.
            entry.until = max(entry.until, clock.now() + ttl)
            # No process has to live for the lease any more. Whoever adopts it expects this very
            # version of the record, and replaces it in one step: of several, one does.
            marked = {**record, "ttl": ttl, "renew": False, MARK: handle.mark}
            held = Held(self.token)
            detached = keeper.store.rewrite(self.name, held, ttl, marked, handle.mark)
        except LeaseLost:
            raise
        except BaseException:
            self.give_up()
            raise
        keeper.forget(entry)
        if detached is None:
            self._tell_lost("the store no longer had it when it was detached")
            raise LeaseLost(self.name, self._reason)
        return str(handle)

    def renewed(self, renew: bool) -> None:
        """Have the lease be extended by itself from now on, or not any more."""
        if self._entry.renew is not renew:
            self._entry.renew = renew
            self._keeper.plan(self._entry)

    def cool(self, cooling: Cooling | None) -> None:
        """Have the lock stay taken after the release of this lease."""
        self._entry.cooling = cooling

    def end_block(self, *, failed: bool) -> None:
        """Note how what was done under the lease has ended: that says how long its lock cools."""
        if self._entry.cooling is not None:
            self._entry.cooling.ended(failed=failed)

    def alone(self) -> Lease:
        """Have the lease belong to whoever refers to it, and to no block any more."""
        if self._state == HELD:
            self._entry.of, self._entry.bare = ref(self, self._keeper.vanished.append), True
        return self

    def held_again(self, adopted: Lease) -> None:
        """This process has adopted the lease, which it had detached."""
        before, self._entry = self._entry, adopted._entry
        entry = self._entry
        entry.of, entry.bare, entry.holder = before.of, before.bare, ref(self)
        self._state, self._open = HELD, [None]

    def outlives(self) -> None:
        """Have the lease go on without this process, until its end: an operator's hold."""
        if self._leave(DETACHED):
            self._keeper.forget(self._entry)

    async def aextend(self, ttl: float | None = None) -> bool:
        """`extend`, made in a thread. It may have been done if the caller is cancelled."""
        return await finish(self.store, partial(self.extend, ttl))

    async def arelease(self) -> bool:
        """`release`, made in a thread. It is done even if the caller is cancelled."""
        return await finish(self.store, self.release)

    def give_up(self) -> None:
        """Have the lease given back by the renewal thread, unless it is over."""
        if self._keeper.give_up(self._entry):
            self._state = GIVEN_UP
            note_event(self._keeper.store, "given up", self.name, self._entry.record)

    def given_back(self) -> None:
        """Send `lock_released`: the lease was released, perhaps by the renewal thread."""
        held = clock.now() - self._since
        tell(lock_released, lease=self, template=self.template, held=held)

    def lost(self, reason: str) -> None:
        """Note that the lease is lost, and send `lock_lost`: once, and for good."""
        if self._state == HELD and self._leave(LOST):
            self._keeper.forget(self._entry)
            self._tell_lost(reason)

    def _leave(self, state: str) -> bool:
        """Leave `HELD`. True for the one caller that did it."""
        try:
            self._open.pop()
        except IndexError:
            return False
        self._state = state
        return True

    def _why(self) -> str:
        return self._reason or WHY[GIVEN_UP if self._entry.given_up else self._state]

    def _tell_lost(self, reason: str) -> None:
        self._state, self._reason = LOST, reason
        note_event(self._keeper.store, "lost", self.name, self._entry.record, reason=reason)
        told = partial(
            tell, lock_lost, lease=self, reason=reason, template=self.template,
            cause="expired" if reason == RAN_OUT else "gone", held=clock.now() - self._since,
        )  # fmt: skip
        if asyncio._get_running_loop() is None:
            told()
        else:  # A receiver must not block the loop.
            self._keeper.later(told)


class Use:
    """What one block, or call, holds.

    ``leases`` are its own, in the order in which they were taken, and ``shared`` those that a block
    around it has (``reentrant=True``). If it is garbage-collected with its frames, because an
    exception from a signal handler came just before the release, the renewal thread gives its
    leases back. ``strand`` names the thread or asyncio task in which it was made, and ``job`` is
    the Celery task there, unless the lock is a task's own: its steps may be made in other threads.
    ``note_kept``: the acquire has not written its note, because there is another. ``who``: what did
    its work under the lock, such as "a view", which is not to be done again because the store does
    not answer the release: that is logged, and raises nothing. "": it raises.
    """

    __slots__ = ("__weakref__", "job", "leases", "note_kept", "shared", "strand", "who")

    def __init__(self, who: str = "", *, of_task: bool = False) -> None:
        self.who = who
        self.leases: list[Lease] = []
        self.shared: list[Lease] = []
        self.strand = strand_name()
        self.job = None if of_task else running_task()
        self.note_kept = False

    def is_beside(self, other: Use) -> bool:
        """Whether the other one is of the same thread or task, and not of the parent's."""
        leases = (*other.leases, *other.shared)
        return self.strand == other.strand and not any(lease.inherited for lease in leases)

    def record(
        self, task: str | None = None, task_id: str | None = None, group: int | None = None
    ) -> dict[str, Any]:
        """Return the owner's record of a lock that is taken here.

        ``task`` and ``task_id``: those of the task whose own lock it is. Without both, code that
        runs inside a Celery task records that task. ``group``: the id of a process group in which
        the work goes on.
        """
        if self.job is None or task is not None or task_id is not None:
            record = owner_record(task, task_id, self.strand)
            return record if group is None else record | {"group": group}
        return owner_record(*self.job, self.strand) | {INSIDE: True}

    def leave(self, *, failed: bool, quiet: bool | None = None) -> None:
        """Release the leases at the end of a block, the last one first, whatever becomes of others.

        Once the store has not answered, the rest is given up: each of them might wait as long.
        ``failed``: the block raised an error. ``quiet``: raise nothing; None: if the block failed,
        because its error is to be reported. Otherwise raises `LeaseLost` if a lease was lost, also
        a shared one, and else `StoreUnavailable`.
        """
        lost: LeaseLost | None = None
        silent: StoreUnavailable | None = None
        for lease in (*self.shared, *reversed(self.leases)):
            try:
                if lease in self.shared:
                    if not lease.is_of_a_block():
                        raise LeaseLost(lease.name, "the block that held it has ended")
                    released = False
                else:
                    lease.end_block(failed=failed)
                    if silent is not None:
                        lease.give_up()
                        continue
                    released = lease.release()
                if not released and not lease.ended_well:
                    lease.assert_held()
            except LeaseLost as error:
                lost = lost or error
            except StoreUnavailable as error:
                silent = error
                if self.who:
                    name, why = lease.base_name, printable(error)
                    logger.warning("%s could not release its lock %s now: %s", self.who, name, why)
        self.shared, self.leases = [], []
        worst = lost or (None if self.who else silent)
        if worst is not None and not (failed if quiet is None else quiet):
            raise worst

    def drop(self) -> None:
        """Give up what was not released. The locks do not cool."""
        for lease in reversed(self.leases):
            if lease._state == HELD:
                lease.cool(None)
                lease.give_up()
