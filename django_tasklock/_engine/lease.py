"""What the holder of a lock has, and what one block holds: `Lease`, and `Use`.

A `Lease` is the public face of an `OwnToken`, which has one state:

    ASKED ---refused---> forgotten
      |
      +------granted---> HELD ---release---> RELEASED ---.
      |                   | |`---detach----> DETACHED ---+--- the store had it no more ---> LOST
      |                   | `--- its ttl is over, or the store has it no more ------------> LOST
      |                   |                              |
      | no answer, or     | nobody refers                | no answer, or
      | interrupted       V to it                        | interrupted
      `---------------> GIVEN UP <-----------------------'
                          `--- given back, or over by then ---> forgotten

A lease of a block is given up if nobody refers to its block any more. One that the application
keeps, and drops, is only not extended any more.

Each caller makes the passages of its own calls. The store's thread finds what nobody refers to, and
gives back. The thread or a caller, whoever sees it first, makes that from HELD to LOST. Out of HELD
one of them gets: `Keeper.passes`.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, NoReturn
from weakref import ref

from .._compat.running_task import running_task
from .._values import clock
from .._values.arguments import base_of, checked_ttl, slot_of
from .._values.lock_info import kept_key, shown
from .._values.owner import INSIDE, Owner, owner_record, strand_name
from .._values.tokens import Handle, new_mark
from .._values.words import logger, printable
from ..exceptions import LeaseLost, StoreUnavailable
from ..stores.base import Note
from .aio import finish
from .keeper import RAN_OUT, Keeper
from .own_token import DETACHED, GIVEN_UP, HELD, RELEASED, Cooling, OwnToken

# Why a lease does not hold its lock that is not lost, by its state.
WHY = {
    RELEASED: "it was released",
    GIVEN_UP: "its release was interrupted",
    DETACHED: "it was detached",
}


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
        "__weakref__", "_keeper", "_own", "fence", "name", "store", "template", "token",
    )  # fmt: skip

    def __init__(
        self, keeper: Keeper, own: OwnToken, store: str, fence: int | None, template: str | None
    ) -> None:
        self._keeper, self._own, self.store = keeper, own, store
        name = own.names[0]
        self.name, self.token = name if type(name) is str else shown(name), own.token
        self.fence, self.template = fence, template
        own.lease = ref(self)

    def __repr__(self) -> str:
        return f"<Lease {self.name!r} fence={self.fence} {self._own.state}>"

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
        use.end(failed=kind is not None)

    @property
    def ttl(self) -> float:
        """The length of the last grant or extension, in seconds."""
        return self._own.ttl

    @property
    def renew(self) -> bool:
        """Whether the lease is extended by itself."""
        return self._own.renew

    @property
    def slot(self) -> int | None:
        """The number of the permit, from 1; None for the lease of a plain lock."""
        return slot_of(self.name, self._own.record.get("slots"))

    @property
    def owner(self) -> Owner:
        """The owner that is recorded with the lease."""
        return Owner.from_record(self._own.record)

    @property
    def held(self) -> bool:
        """Whether the lease still holds the lock, by this process's clock."""
        return self.lasts and not self._own.recalled

    @property
    def lasts(self) -> bool:
        """The same; True for a holder that is recalled, too: nobody else gets the lock before it
        has ended."""
        own = self._own
        if own.state != HELD or self._keeper.inherited:
            return False
        # A caller that has found it lost may have been interrupted before it could say so.
        if self._keeper.table.get(self.token) is not own:
            return False
        if clock.now() < own.until and (own.left is None or own.left() > 0):
            return True
        self._keeper.lost(own, RAN_OUT)
        return False

    @property
    def remaining(self) -> float:
        """The seconds that are left; 0.0 if the lease is not held."""
        if not self.held:
            return 0.0
        left = self._own.until - clock.now()
        if self._own.left is not None:
            left = min(left, self._own.left())
        return max(0.0, left)

    @property
    def detached(self) -> bool:
        """Whether the lease goes on without this process."""
        return self._own.state == DETACHED

    @property
    def ended_well(self) -> bool:
        """Whether the holder has released the lease, or has detached it."""
        return self._own.state in (RELEASED, DETACHED)

    @property
    def base_name(self) -> str:
        """The name that the caller gave: of a permit that of all of them."""
        return base_of(self.name, self._own.record.get("slots"))

    def is_here(self) -> bool:
        """Whether this thread finds the lock under the same key."""
        return kept_key(self._keeper.store.keyed(str(self.name))) == kept_key(self.name)

    def assert_held(self) -> None:
        """Raise `LeaseLost` if the lease does not hold the lock any more."""
        if not self.held:
            raise LeaseLost(self.name, self._why())

    def extend(self, ttl: float | None = None) -> bool:
        """Make the lease last ``ttl`` seconds from now. None: as long as last time. It never lasts
        beyond its ``max_hold``.

        Returns False if the lease no longer held the lock; nothing was changed then. Raises
        `StoreUnavailable` if the store does not answer: the lease ends at the earlier of its old
        and its new deadline then, unless a later call succeeds. Raises `TypeError` or `ValueError`
        for a wrong ``ttl``.
        """
        ttl = self.ttl if ttl is None else checked_ttl(ttl)
        return self.held and self._keeper.extend(self._own, ttl)

    def release(self, _note: Note | None = None) -> bool:
        """Give the lock back, or let it cool (``hold_at_least``, ``cooldown``).

        Returns False if the lease no longer held it; nothing was changed then.

        Raises `StoreUnavailable` if the store does not answer. After that, or if any other
        exception interrupts the call, the lease is given up, and not held any more. The renewal
        thread releases it as soon as the store answers, and it ends at its deadline at the latest.
        A later call asks the store again.
        """
        keeper, own = self._keeper, self._own
        try:
            if own.state == GIVEN_UP:
                return keeper.give_back(own)
            if not self.lasts or not keeper.passes(own, RELEASED):
                return False
            # Under a key of `keyed_note`: the renewal thread, which has no tenant, may write it.
            own.note = _note
            own.renew = False
            if own.cooling is not None or not keeper.store.atomic_release:
                # An extension that is under way would write the lease again.
                own.is_next(own.begin_call(), own.until)
            released = keeper.give_back(own)
        except BaseException:
            self.give_up()
            raise
        if released:
            keeper.released(own)
        else:
            keeper.gone(own, "the store no longer had it at its release")
        return released

    def detach(self, ttl: float | None = None) -> str:
        """Let the lease go on without this process. Returns a handle for ``locks.adopt``, with
        which another process, or this one, goes on under it.

        Args:
            ttl: seconds from now until the lease ends, unless somebody adopts it. None: as long as
                last time. Its ``max_hold`` goes on.

        From then on this process neither holds nor renews the lease: `held` is False, `release`
        returns False, and a block that holds it ends without an error and releases nothing. Nobody
        else gets the lock until the lease ends, or its adopter releases it, whatever becomes of
        this process. The handle is a str of printable ASCII, for JSON or a header. It can be used
        once.

        Raises `LeaseLost` if the lease does not hold the lock, `TypeError` or `ValueError` for a
        wrong ``ttl``, and `StoreUnavailable`. After that, and if any other exception interrupts the
        call, the lease is given up, as by an interrupted `release`.
        """
        keeper, own = self._keeper, self._own
        ttl = own.ttl if ttl is None else checked_ttl(ttl)
        self.assert_held()
        keeper.store.check_lasts("ttl", ttl)
        last, slots, mark = float(own.ttl), own.record.get("slots"), new_mark()
        limit = time.time() + own.limit - clock.now()
        handle = Handle(self.store, self.name, self.token, self.fence, mark, last, slots, limit)
        try:
            if not keeper.passes(own, DETACHED):
                raise LeaseLost(self.name, self._why())
            detached = keeper.detach(own, ttl, mark)
        except BaseException:
            self.give_up()
            raise
        if not detached:
            keeper.gone(own, "the store no longer had it when it was detached")
            raise LeaseLost(self.name, own.reason)
        keeper.forget(own)
        return str(handle)

    def renewed(self, renew: bool) -> None:
        """Have the lease be extended by itself from now on, or not any more."""
        if self._own.renew is not renew:
            self._own.renew = renew
            self._keeper.plan(self._own)

    def cool(self, cooling: Cooling | None) -> None:
        """Have the lock stay taken after the release of this lease."""
        self._own.cooling = cooling

    def end_block(self, *, failed: bool) -> None:
        """Note how what was done under the lease has ended: that says how long its lock cools."""
        if self._own.cooling is not None:
            self._own.cooling.ended(failed=failed)

    def alone(self) -> Lease:
        """Have the lease belong to whoever refers to it, and to no block any more."""
        if self._own.state == HELD:
            self._own.of, self._own.bare = ref(self, self._keeper.jobs.vanished.append), True
        return self

    def outlives(self) -> None:
        """Have the lease go on without this process, until its end: an operator's hold."""
        if self._keeper.passes(self._own, DETACHED):
            self._keeper.forget(self._own)

    async def aextend(self, ttl: float | None = None) -> bool:
        """`extend`, made in a thread. It may have been done if the caller is cancelled."""
        return await finish(self.store, partial(self.extend, ttl))

    async def arelease(self) -> bool:
        """`release`, made in a thread. It is done even if the caller is cancelled."""
        return await finish(self.store, self.release)

    def give_up(self) -> None:
        """Have the lease given back by the store's thread, unless it is over."""
        self._keeper.give_up(self._own)

    def _why(self) -> str:
        own = self._own
        if own.state == HELD and self._keeper.inherited:
            return "it belongs to the parent of this forked process"
        return own.reason or WHY.get(own.state, RAN_OUT)


class Use:
    """What one block, or call, holds.

    ``leases`` are its own, in the order in which they were taken, and ``shared`` those that a block
    around it has (``reentrant=True``). If it is garbage-collected with its frames, because an
    exception from a signal handler came just before the release, the renewal thread gives its
    leases back. ``strand`` names the thread or asyncio task in which it was made: its steps may be
    made in other threads. ``said``: what the owner's record is to say, as for `owner_record`. Its
    "task" and "task_id" are those of the task whose own lock it is; without any, those of the task
    inside which it was made. ``note_kept``: the acquire has not written its note, because there is
    another. ``who``: what did its work under the lock, such as "a view", which is not to be done
    again because the store does not answer the release: that is logged, and raises nothing. "": it
    raises.
    """

    __slots__ = ("__weakref__", "leases", "note_kept", "said", "shared", "strand", "who")

    # Whether its end raises nothing.
    quiet = False

    def __init__(self, who: str = "", **said: Any) -> None:
        job = None if said else running_task()
        self.who = who
        self.said = said if job is None else {"task": job[0], "task_id": job[1], INSIDE: True}
        self.leases: list[Lease] = []
        self.shared: list[Lease] = []
        self.strand = strand_name()
        self.note_kept = False

    def is_beside(self, other: Use) -> bool:
        """Whether the other one is of the same thread or task, and not of the parent's."""
        leases = (*other.leases, *other.shared)
        return self.strand == other.strand and not any(lease._keeper.inherited for lease in leases)

    def record(self) -> dict[str, Any]:
        """Return the owner's record of a lock that is taken here."""
        return owner_record(strand=self.strand, **self.said)

    def end(self, *, failed: bool) -> None:
        """Release the leases at the end of a block, the last one first, whatever becomes of others.

        Once the store has not answered, the rest is given up: each of them might wait as long.
        ``failed``: the block raised an error, which is to be reported: nothing else is raised.
        Otherwise raises `LeaseLost` if a lease was lost, also a shared one, and else
        `StoreUnavailable`, unless it is ``quiet``.
        """
        lost: LeaseLost | None = None
        silent: StoreUnavailable | None = None
        for lease in (*self.shared, *reversed(self.leases)):
            try:
                if lease in self.shared:
                    # In no variable: what is raised in the end refers to this frame.
                    if lease not in getattr(lease._own.of(), "leases", ()):
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
        self.shared.clear()
        self.leases.clear()
        worst = lost or (None if self.who else silent)
        if worst is not None and not (failed or self.quiet):
            raise worst

    def drop(self) -> None:
        """Give up what was not released. The locks do not cool."""
        for lease in reversed(self.leases):
            if lease._own.state == HELD:
                lease.cool(None)
                lease.give_up()
