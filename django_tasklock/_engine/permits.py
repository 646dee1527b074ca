"""``slots=N``: one permit of N.

Each permit is an ordinary lock, ``NAME#1`` to ``NAME#N``. Who finds one free, while nobody waits,
takes it: one round trip on Redis. Everybody else waits at the gate, in their order. That is an
ordinary lock too, which only those take who have to wait, and who holds it is the first of them. It
waits in the queue of each permit, takes the one that becomes free first, and lets the next one be
the first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import ref

from .._values import clock
from .._values.lock_info import LockInfo
from .._values.owner import INSIDE, SINCE, Owner, recorded
from .._values.slots import gate_name, permit_names
from .._values.tokens import new_token
from ..exceptions import StoreUnavailable
from ..stores.base import AllHeld, BaseStore, Grant, Note, OneOf, Refusal
from .keeper import Entry, keeper_of
from .waiting import (
    MAX_LATE_GRANTS,
    OWNER_CHECK_SECONDS,
    Answer,
    Attempt,
    Pause,
    Steps,
    always_late,
    began_at,
)

__all__ = ["Permits"]

# How long the first waiter waits for one permit before it looks at the others: the first of these,
# or the second for each permit if that is longer, so that it uses little of the processor.
TURN_SECONDS, TURN_SECONDS_FOR_EACH = 0.005, 0.0002
# A lease of the gate lasts as long as that of the permit, but between these two: a waiter that died
# on another machine is to make room for the next one soon.
SHORTEST_GATE_SECONDS, LONGEST_GATE_SECONDS = 2.0, 10.0


class Permits:
    """One call's attempt to take a permit of ``name``. The arguments are those of `Attempt`;
    ``owner`` has the key "slots"."""

    def __init__(
        self,
        store: BaseStore,
        name: str,
        token: str,
        ttl: float,
        owner: Mapping[str, Any],
        deadline: float | None,
        take_over: Callable[[LockInfo], bool],
        note: Note | None,
    ) -> None:
        self.names = tuple(store.keyed(each) for each in permit_names(name, owner["slots"]))
        # The name of the permit that was granted.
        self.name = name
        # One of the holders for which it began to wait.
        self.met: LockInfo | None = None
        self._store, self._token, self._ttl, self._owner = store, token, ttl, owner
        self._deadline, self._take_over, self._note = deadline, take_over, note
        # Of the message whose run asks.
        self._task_id = None if owner.get(INSIDE) else owner.get("task_id")
        self._gate = store.keyed(gate_name(name))
        self._keeper = keeper_of(store, self._gate)
        # What is known of this caller's token at the gate. The keeper renews it, and gives it back
        # once this object is gone.
        self._turn: Entry | None = None
        # When it began to wait, in seconds since the epoch: it may come to the gate several times.
        self._since = time.time()
        self._queues: Sequence[_Queue] = ()

    def take(self) -> Steps[Answer]:
        """Take a permit, or wait for one. Returns a refusal, or a grant whose lease is not over:
        ``name`` is the permit then. Raises `StoreUnavailable`."""
        try:
            found = self._at_once(self._gate)
            while isinstance(found, AllHeld):
                if self._left() <= 0 or self._same_run(found.holders):
                    return self._refusal(found), 0.0
                self.met = self.met or next(iter(found.holders), found.gate)
                before = yield from self._come_to_the_gate()
                if before is not None:
                    return self._refusal(AllHeld((), before)), 0.0
                found = yield from self._as_first()
                self._leave_the_gate()
            answer, began = found
            if isinstance(answer, Grant) and clock.now() >= began + self._ttl:
                raise always_late(self._store, self._ttl)
            return found
        except BaseException as error:
            for queue in self._queues:
                if isinstance(error, StoreUnavailable):
                    queue.attempt.drop()  # A call for each might take as long.
                queue.steps.close()
            if self._turn is not None:
                self._keeper.give_up(self._turn)
            raise

    def _at_once(self, gate: str | None) -> AllHeld | Answer:
        """Take a permit that is free, unless somebody holds ``gate``."""
        store = self._store
        for _ in range(MAX_LATE_GRANTS):
            asked = clock.now()
            answer = store.acquire_any(
                self.names, gate, self._token, self._ttl, self._owner, self._note
            )
            if isinstance(answer, OneOf):
                if clock.now() < asked + self._ttl:
                    return self._won(answer.name, answer.grant, asked, answer.others)
                # The process was stopped for longer than the lease.
                store.release(answer.name, self._token, answer.grant.proof)
                continue
            there = (answer.gate, *answer.holders)
            if not [info for info in there if info is not None and self._take_over(info)]:
                break
        if isinstance(answer, OneOf):
            raise always_late(store, self._ttl)
        return answer

    def _come_to_the_gate(self) -> Steps[LockInfo | None]:
        """Wait until this caller is the first. Returns None then, or else who still is the first
        when the deadline has passed."""
        ttl = min(max(self._ttl, SHORTEST_GATE_SECONDS), LONGEST_GATE_SECONDS)
        record = {**self._owner, "ttl": ttl, "renew": True, SINCE: self._since}
        record["waits_for"] = recorded(self.name)
        del record["slots"]
        keeper = self._keeper
        # A new token: what is left of that of the last turn may still be given back.
        entry = self._turn = Entry(
            ref(self, keeper.vanished.append), (self._gate,), new_token(), ttl, record, renew=True
        )
        keeper.enter(entry)
        answer, began = yield from Attempt(
            self._store, self._gate, entry.token, ttl, record, self._deadline, self._take_over
        ).take()
        if isinstance(answer, Refusal):
            keeper.forget(entry)
            return answer.holder
        entry.proof = answer.proof
        keeper.granted(entry, began + ttl)
        return None

    def _is_first(self) -> bool:
        """Whether this caller's lease of the gate goes on. Otherwise somebody else may have it."""
        return self._turn is not None and self._keeper.table.get(self._turn.token) is self._turn

    def _leave_the_gate(self) -> None:
        """Let the next one be the first."""
        entry = self._turn
        if entry is None or not self._is_first():
            return
        entry.renew = False
        if not self._store.atomic_release:
            entry.claim(entry.until)  # An extension that is under way would write it again.
        try:
            self._store.release(self._gate, entry.token, entry.proof)
        except StoreUnavailable:
            self._keeper.give_up(entry)
        else:
            self._keeper.forget(entry)

    def _as_first(self) -> Steps[AllHeld | Answer]:
        """Wait for any permit, as the first. Returns `AllHeld` at the deadline, and if the gate was
        lost."""
        if type(self._store).acquire_any is not BaseStore.acquire_any:
            # A permit may be free by now. To ask for all at once costs less than to join and leave
            # the queue of each: without this, ten permits that are in use for ten milliseconds each
            # change hands five times more slowly.
            found = self._at_once(None)
            if not isinstance(found, AllHeld):
                return found
        owner = {**self._owner, SINCE: self._since}
        self._queues = [
            _Queue(
                Attempt(
                    self._store, name, self._token, self._ttl, owner, None, self._take_over,
                    self._note, queued=True,
                )
            )
            for name in self.names
        ]  # fmt: skip
        won = yield from self._wait_in_queues()
        won = self._leave_queues(won)
        if won is not None:
            return self._won(won.attempt.name, *won.granted, None)
        # Somebody may have deleted a permit's key, which tells nobody.
        return self._at_once(None) if self._left() <= 0 else AllHeld((), None)

    def _wait_in_queues(self) -> Steps[_Queue | None]:
        """Wait until a permit is granted. Returns its queue; None at the deadline, and if the gate
        was lost."""
        queues, turns = self._queues, 0
        turn = max(TURN_SECONDS, TURN_SECONDS_FOR_EACH * len(queues))
        while self._is_first():
            for queue in queues:
                if queue.look():
                    return queue
            if self._left() <= 0:
                break
            seconds = max(0.0, min(self._left(), min(each.until for each in queues) - clock.now()))
            heard = [queue for queue in queues if queue.pause.waiter is not None]
            if not heard:
                yield Pause(seconds)
                continue
            turns += 1
            queue = heard[turns % len(heard)]
            news = yield Pause(min(turn, seconds), queue.pause.waiter)
            if news is not None and queue.go_on(news):
                return queue
        return None

    def _leave_queues(self, won: _Queue | None) -> _Queue | None:
        """Leave the queues. What was handed over just before to other queues than ``won`` is
        released; None: than the first of those. Returns ``won``, or that one."""
        for queue in self._queues:
            if queue is won:
                continue
            asked, grant = clock.now(), queue.attempt.leave()
            if grant is None:
                continue
            if won is None:
                won = queue
                queue.granted = grant, began_at(grant, asked)
            else:
                self._store.release(queue.attempt.name, self._token, grant.proof)
        self._queues = ()
        return won

    def _won(
        self, name: str, grant: Grant, began: float, others: Sequence[LockInfo] | None
    ) -> Answer:
        """Take the granted permit, unless another run of the same message has one of ``others``
        (None: they were not looked at)."""
        if self._task_id is not None:
            if others is None:
                others = self._held([other for other in self.names if other != name])
            same = self._same_run(others)
            if same is not None:
                self._store.release(name, self._token, grant.proof)
                return Refusal(same), 0.0
        self.name = name
        return grant, began

    def _same_run(self, holders: Sequence[LockInfo]) -> LockInfo | None:
        """The holder that is another run of the same message, if its process is not known dead.

        A plain lock excludes such a run by itself; here another permit may be free.
        """
        for holder in holders:
            if (
                self._task_id is not None
                and holder.owner.task_id == self._task_id
                and holder.token != self._token
                and not self._take_over(holder)
            ):
                return holder
        return None

    def _refusal(self, found: AllHeld) -> Refusal:
        """The refusal with the holder that tells the caller most: another run of the same message,
        or else the one that ends first."""
        holders = found.holders or self._held(self.names)
        holder = self._same_run(holders)
        if holder is None and holders:
            holder = min(holders, key=lambda info: math.inf if info.ttl is None else info.ttl)
        # All are free at this moment, and the first of the waiters is about to take one.
        return Refusal(
            holder
            or found.gate
            or LockInfo(self.names[0], 0.0, None, None, Owner(), self._store.alias, "")
        )

    def _held(self, names: Sequence[str]) -> list[LockInfo]:
        return [info for info in self._store.get_many(names) if info is not None]

    def _left(self) -> float:
        return math.inf if self._deadline is None else self._deadline - clock.now()


class _Queue:
    """The first waiter's attempt to take one permit, whose steps are made in turn with those for
    the other permits. Nobody else is in that queue, unless somebody waits for that very lock."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt, self.steps = attempt, attempt.take()
        # What the steps wait for, and until when, on `clock.now`.
        self.pause, self.until = Pause(0.0), 0.0
        # The grant, and when its lease began.
        self.granted: tuple[Any, float] = (None, 0.0)

    def look(self) -> bool:
        """Make the next step if there is news, or it is time. Returns whether the permit is
        granted."""
        waiter = self.pause.waiter
        cut = waiter is not None and waiter.cut
        news = None if waiter is None or cut else waiter.wait(0.0)
        if news is None and not cut and clock.now() < self.until:
            return False
        return self.go_on(news)

    def go_on(self, news: Grant | Refusal | None) -> bool:
        """Make the next step with the news of `pause`. Returns what `look` does."""
        try:
            self.pause = self.steps.send(news)
        except StopIteration as end:
            self.granted = end.value
            return True
        seconds = self.pause.seconds
        if self.pause.watched:
            seconds = min(seconds, OWNER_CHECK_SECONDS)
        self.until = clock.now() + seconds
        return False
