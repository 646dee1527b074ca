"""The tokens of this process in a table, and what is done for them: extended, lost, given back.

A token is in the table before it is sent, beside a weak reference to what needs it: the `Use` of a
block, which lives as long as the block, or a lease that the application keeps. A caller that gets
an answer says so, and a caller that is interrupted says so if it can. If it cannot, because an
exception came between two instructions, its `Use` dies with its frames, and the store's thread
gives the token back.

The thread extends a lease after a third of the time that is left of it, so two calls may fail
before it is over; after a call that failed it tries again after a tenth of the ttl. A forked child
has a table of its own: it owns nothing of its parent's.
"""

from __future__ import annotations

import asyncio
import math
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from os import getpid
from typing import Any

from django.dispatch import Signal

from .._values import clock
from .._values.owner import COOLING, MARK
from .._values.processes import own_of
from .._values.words import logger
from ..exceptions import StoreUnavailable
from ..signals import lock_lost, lock_released, tell
from ..stores.base import BaseStore, Extension
from ..stores.records import Held, note_record
from .history import note_event
from .jobs import LOOK_SECONDS, jobs_of
from .own_token import GIVEN_UP, HELD, LOST, OwnToken

# A lease is extended after this share of the time that is left of it; after a call that failed,
# after this share of its ttl.
RENEWAL_SHARE, FAILURE_SHARE = 1 / 3, 1 / 10
# With less than this share of its ttl left, an extension by the holder, which began before, is not
# waited for any more: perhaps it was interrupted.
LATE_SHARE = 1 / 2
# A lease may be extended earlier by this share of its ttl, in one call with others. At most so many
# share a call, and its failure.
TOGETHER_SHARE, LEASES_PER_CALL = 1 / 12, 500
# When the store is asked again for a token that it did not have: the command of the interrupted
# call may still be on its way.
LATER_LOOKS_SECONDS = (0.25, 1.0, 4.0)
# So many names of such tokens are looked for in one call.
NAMES_PER_LOOK = 500
# So many jobs wait before a note is left to its ttl.
MOST_JOBS = 10_000
# Why a lease is lost that was not extended in time; or had reached its limit.
RAN_OUT, TOO_LONG = "its ttl ran out", "held for longer than max_hold"


class Keeper:
    """Looks after the tokens of one store, in the process that made it."""

    def __init__(self, store: BaseStore) -> None:
        self.store, self.process = store, getpid()
        self.jobs = jobs_of(store)
        self.table: dict[str, OwnToken] = self.jobs.tokens
        # Were given up before an answer was read.
        self.unanswered: deque[OwnToken] = deque()
        self.jobs.look = self.look
        self._mistaken = False

    @property
    def inherited(self) -> bool:
        """Whether it is of the parent of this forked process."""
        return self.process != getpid()

    # ------------------------------------- the passages of a token, and who is told of them

    def enter(self, own: OwnToken) -> None:
        """To be called before the token is sent. Raises `StoreUnavailable` if the lease is to be
        renewed, and the system starts no thread."""
        self.table[own.token] = own
        if not self.jobs.running.locked():
            try:
                self.jobs.start()
            except RuntimeError as error:
                if own.renew:
                    self.forget(own)
                    raise StoreUnavailable(self.store.alias, f"no renewal: {error}") from error

    def granted(self, own: OwnToken, until: float) -> None:
        """The lease is granted, and ends at ``until``, on `clock.now`."""
        own.until, own.since = until, clock.now()
        own.way_out, own.state = {HELD: True}, HELD
        self.plan(own)

    def passes(self, own: OwnToken, state: str) -> bool:
        """Have it pass from `HELD` to another state. True for the one caller that has done so."""
        passed = own.way_out.pop(HELD, False)
        if passed:
            own.state = state
        return passed

    def lost(self, own: OwnToken, reason: str) -> None:
        """The lease is over while it is held, by the clock or in the store."""
        if reason == RAN_OUT and own.ends_at_limit:
            reason = TOO_LONG
        self.forget(own)  # Also if the caller was interrupted that has made its last passage.
        if own.state == HELD and self.passes(own, LOST):
            self.gone(own, reason)

    def gone(self, own: OwnToken, reason: str) -> None:
        """It is lost, as the caller says that has made its last passage."""
        self.forget(own)
        own.state, own.reason = LOST, reason
        note_event(self.store, "lost", own.name, own.record, reason=reason)
        cause = "expired" if reason in (RAN_OUT, TOO_LONG) else "gone"
        told = partial(self._tell, lock_lost, own, own.lease(), reason=reason, cause=cause)
        alarm = own.alarm  # Read once: the call that it ends may just be returning.
        if alarm is None and asyncio._get_running_loop() is None:
            told()
        else:  # A receiver must not block the loop, nor put off the alarm.
            self.jobs.later(told)
        if alarm is not None:
            alarm()

    def give_up(self, own: OwnToken) -> None:
        """Have the token given back as soon as the store answers, unless it is over."""
        over = own.state == GIVEN_UP or self.table.get(own.token) is not own
        if over or self.inherited:
            return
        now = clock.now()
        own.renew, own.until = False, min(own.until, now + own.ttl)
        if own.cooling is not None:
            own.until = max(own.until, now + own.cooling.left())
        if own.since is None and self.store.puts_together:
            self.unanswered.append(own)
            self.jobs.later(self._look_for_unanswered)
        else:
            self.jobs.later(partial(self._give_back, own, iter(LATER_LOOKS_SECONDS)))
        own.state = GIVEN_UP  # Not before: a caller that is interrupted before is called again.
        self.forget(own)

    def forget(self, own: OwnToken) -> None:
        """The token is over."""
        self.table.pop(own.token, None)

    def released(self, own: OwnToken) -> None:
        """The store has released the lease, for its holder or for the thread."""
        self.table.pop(own.token, None)  # As `forget` does, without a call more for each lock.
        if lock_released.receivers:
            self._tell(lock_released, own, own.lease())

    def _tell(self, signal: Signal, own: OwnToken, lease: Any, **said: Any) -> None:
        """Send a signal of the ``lease``; None: the application has dropped it."""
        if lease is not None and own.since is not None:
            held = clock.now() - own.since
            tell(signal, lease=lease, template=lease.template, held=held, **said)

    # -------------------------------------------------------------------------- to extend

    def plan(self, own: OwnToken) -> None:
        """Extend the lease in time for its present end, if it is to be renewed."""
        if own.renew:
            now = clock.now()
            own.due = now + (own.until - now) * RENEWAL_SHARE
            if own.due < self.jobs.first:
                self.jobs.news = True
                if own.due < now + LOOK_SECONDS:
                    self.jobs.wake()

    def extend(self, own: OwnToken, ttl: float) -> bool:
        """Extend a lease for its holder. Returns whether it was. Raises `StoreUnavailable`."""
        before, ends, held = own.ttl, math.inf, None
        call = own.begin_call()
        try:
            # First: an extension by the thread, meanwhile, is to ask for the same.
            own.ttl = ttl
            if own.is_next(call, own.until) and own.state == HELD:
                ends = min(clock.now() + ttl, own.limit)
                own.ttl = ttl = own.bounded(ttl, clock.now())
                # Before the call: a caller that is interrupted may come to no later instruction.
                own.until = min(own.until, ends)
                self.plan(own)
                held = self.store.extend(own.name, own.token, ttl)
                if held:
                    own.until = ends
        finally:
            if held is None:
                # Again: another extension may have been made meanwhile, and this one after it.
                own.ttl, own.until = before, min(own.until, ends)
            del call  # An exception refers to this frame.
        if held is False:
            self.lost(own, "the store no longer has it")
        return bool(held)

    def look(self) -> float:
        """Look after all tokens. Returns when the next lease is to be extended."""
        now, due = clock.now(), []
        for own in list(self.table.values()):
            if own.of() is None and own.bare:
                self.forget(own)
                if own.renew:
                    words = f"the lease on {own.name} was not released: it ends with its ttl"
                    self.jobs.later(partial(warnings.warn, words, ResourceWarning))
            elif own.of() is None:
                self.give_up(own)
            elif own.renew and own.until <= now:
                self.lost(own, RAN_OUT)
            elif own.ends_at_limit:
                own.due = own.until  # Only to see that it is over.
            elif own.renew and own.due <= now + own.ttl * TOGETHER_SHARE:
                due.append(own)
        if any(own.due <= now for own in due):
            for at in range(0, len(due), LEASES_PER_CALL):
                if not self._extend(due[at : at + LEASES_PER_CALL]):
                    break  # The others would get no answer either; they are looked at again.
        return min((own.due for own in list(self.table.values()) if own.renew), default=math.inf)

    def _extend(self, tokens: Sequence[OwnToken]) -> bool:
        """Extend leases in one call. Returns False if the store did not answer."""
        extended: list[OwnToken] = []
        calls = [(own, own.begin_call()) for own in tokens]
        for own, call in calls:
            # A caller that makes a call about it now plans the next one. It may be interrupted.
            own.due = clock.now() + LOOK_SECONDS
            # An extension by the holder does no harm at the same time: mostly it asks for the same
            # ttl. Before a release or a detachment the lease is not to be renewed any more.
            late = own.until < clock.now() + own.ttl * LATE_SHARE
            if own.renew and (late or own.is_next(call, 0)):
                extended.append(own)
        started = clock.now()
        batch = [Extension(own.name, own.token, own.bounded(own.ttl, started)) for own in extended]
        answer = self._ask_to_extend(batch)
        said = [None] * len(batch) if answer is None else answer
        for own, extension, held in zip(extended, batch, said, strict=True):
            if held:
                own.until = started + extension.ttl
                self.plan(own)
            elif held is None:
                own.until = min(own.until, started + extension.ttl)
                own.due = clock.now() + own.ttl * FAILURE_SHARE
        del calls, call  # They are over before a receiver of the signal is called.
        for own, held in zip(extended, said, strict=True):
            if held is False:
                self.lost(own, "the store no longer has it")
        return answer is not None

    def _ask_to_extend(self, batch: Sequence[Extension]) -> Sequence[bool | None] | None:
        """What the store says of each lease; None: it does not answer."""
        said: Sequence[bool | None] = ()
        try:
            said = self.store.extend_many(batch)
        except StoreUnavailable:
            pass
        except BaseException:
            # A store's mistake. It may be repeated, and ends with `LeaseLost`: say the cause once.
            if not self._mistaken:
                logger.exception("the lock store %s could not extend its leases", self.store.alias)
            self._mistaken = True
        return said if len(said) == len(batch) else None

    # ------------------------------------------------------------------------ to give back

    def detach(self, own: OwnToken, ttl: float, mark: str) -> bool:
        """Have the lease go on without this process, for ``ttl`` seconds. Returns whether it held
        the lock. Raises `StoreUnavailable`."""
        own.renew = False
        if not own.is_next(own.begin_call(), own.until):
            why = "it does not answer an extension of the lease"
            raise StoreUnavailable(self.store.alias, why)
        ttl = own.bounded(ttl, clock.now())
        # Until then it may be in the store, if it has to be given up.
        own.until = max(own.until, clock.now() + ttl)
        # Whoever adopts it expects this very version of the record, and replaces it in one step:
        # of several, one does.
        return self._leave(own, ttl, mark)

    def _leave(self, own: OwnToken, ttl: float, mark: str) -> bool:
        """Have the record say that no process has to live for the lease, which lasts ``ttl``
        seconds from now. Returns whether it held the lock. Raises `StoreUnavailable`."""
        record = {**own.record, "ttl": ttl, "renew": False, MARK: mark}
        return self.store.rewrite(own.name, Held(own.token), ttl, record, mark) is not None

    def give_back(self, own: OwnToken) -> bool:
        """Tell the store that nobody needs the token any more: release the lock, or let it cool.

        Returns whether it held the lock. Raises `StoreUnavailable`.
        """
        store, note, cooling = self.store, own.note, own.cooling
        if own.since is None:
            return self._give_back_unanswered(own)
        left = 0.0 if cooling is None else cooling.left()
        if not left:
            return store.release(own.names[0], own.token, note)
        # The note comes first. A process that is killed between the two has ended its run: the note
        # says so, and a redelivery of its message is not run again. If the lease turns out to be
        # lost, another run of the same message may have begun, so the note is removed.
        if note is not None:
            store.set_note(note)
        held = self._leave(own, left, COOLING)
        if note is not None and not held:
            with suppress(StoreUnavailable):
                store.unreserve(note.key, note.text)
        return held

    def _give_back_unanswered(self, own: OwnToken) -> bool:
        store, note, names = self.store, own.note, own.names
        if note is not None:
            store.unreserve(note.key, note.text)
        if len(names) > 1:  # Of many permits at most one has this token.
            found = store.find_many(names)
            names = [info.name for info in found if info and info.token == own.token]
        held = [store.release(name, own.token) for name in names]
        if any(held) and note is not None:
            store.unreserve(note.key, note.text)  # The acquire may have come between the two.
        return any(held)

    def _give_back(self, own: OwnToken, looks: Iterator[float]) -> float | None:
        """The job of a token that is given up."""
        if clock.now() < own.until:
            if self.give_back(own):
                self.released(own)
            elif own.since is None:
                return next(looks, None)  # The command of the interrupted call may be on its way.
        return None

    def _look_for_unanswered(self) -> None:
        """The job of such tokens. In an outage there may be thousands: the job of the first ones
        makes one of all that have come together."""
        tokens, names = list[OwnToken](), 0
        while self.unanswered and names < NAMES_PER_LOOK:
            tokens.append(self.unanswered.popleft())
            names += len(tokens[-1].names)
        if tokens:
            self.jobs.later(partial(self._look_for, tokens, iter(LATER_LOOKS_SECONDS)))

    def _look_for(self, tokens: Sequence[OwnToken], looks: Iterator[float]) -> float | None:
        """Have those that the store has, or whose notes it has, given back each by a job of its
        own. Returns when to look again."""
        now = clock.now()
        tokens = [own for own in tokens if now < own.until]  # In a long outage most have ended.
        names = [name for own in tokens for name in own.names]
        names += [own.note.key for own in tokens if own.note is not None]
        found = {entry.token for entry in self.store.get(names) if entry is not None}
        for own in tokens:
            noted = own.note is not None and note_record(own.note.text)["token"] in found
            if noted or own.token in found:
                self.jobs.later(partial(self._give_back, own, iter(LATER_LOOKS_SECONDS)))
        return next(looks, None) if tokens else None

    def unreserve_later(self, key: str, text: str | None, seconds: float) -> None:
        """Do what the store's `unreserve` does, as soon as it answers within so many seconds.
        Raises nothing."""
        if len(self.jobs) >= MOST_JOBS:
            return  # After an outage of many calls: they end by themselves.
        key = self.store.keyed_note(key)
        until, looks = clock.now() + seconds, iter(LATER_LOOKS_SECONDS)

        def unreserve() -> float | None:
            if clock.now() >= until or self.store.unreserve(key, text):
                return None
            return next(looks, None)

        self.jobs.later(unreserve, about_note=True)


def keeper_of(store: BaseStore) -> Keeper:
    """The keeper of a store."""
    return own_of(store, "_keeper", Keeper)
