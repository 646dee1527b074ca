"""``slots=N``: one permit of N.

Each permit is an ordinary lock, ``NAME#1`` to ``NAME#N``. Who finds one free, while nobody waits,
takes it: one round trip on Redis. Everybody else waits at the `Gate`, in their order. The first of
them waits in the queue of each permit, takes the one that becomes free first, and lets the next one
be the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._values import clock
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from .._values.owner_record import INSIDE, SINCE
from .._values.slots import permit_names
from ..exceptions import StoreUnavailable
from ..stores.base import AllHeld, BaseStore, Grant, Note, OneOf, Refusal
from .gate import Gate
from .permit_queue import PermitQueue, leave_queues
from .renewal import renewal
from .steps import Pause, Steps
from .waiting import MAX_LATE_GRANTS, always_late

__all__ = ["PermitAttempt"]

TURN_SECONDS = 0.005
TURN_SECONDS_FOR_EACH = 0.0002
"""how long the first waiter waits for one permit before it looks at the others: the first of these,
or the second for each permit if that is longer, so that it uses little of the processor"""
LONGEST_PAUSE_SECONDS = 0.05
"""the same, where it polls: it also looks whether the holders' processes live"""

TakeOver = Callable[[BaseStore, LockInfo], bool]


class PermitAttempt:
    """One call's attempt to take a permit of ``name``, until ``deadline`` on `clock.now` (None: for
    ever). The other arguments are those of `Attempt`; ``owner`` has the key "slots"."""

    def __init__(
        self,
        store: BaseStore,
        name: str,
        token: str,
        ttl: float,
        owner: Mapping[str, Any],
        deadline: float | None,
        take_over: TakeOver,
        note: Note | None,
    ) -> None:
        self.names = [store.keyed(each) for each in permit_names(name, owner["slots"])]
        self.taken = name
        """the name of the permit that was granted"""
        self.met: LockInfo | None = None
        """one of the holders for which it began to wait"""
        self._store, self._token, self._ttl, self._owner = store, token, ttl, owner
        self._task_id = None if owner.get(INSIDE) else owner.get("task_id")
        """of the message whose run asks"""
        self._deadline, self._take_over, self._note = deadline, take_over, note
        self._queues: Sequence[PermitQueue] = ()
        self._gate = Gate(store, name, ttl, owner, take_over)

    def acquire(self) -> Steps[tuple[Grant | Refusal, float]]:
        """Take a permit. Returns the answer, and when the lease began, on `clock.now`.

        Raises `StoreUnavailable`. After any exception the caller calls `abandon`.
        """
        try:
            for _ in range(MAX_LATE_GRANTS):
                answer = self._at_once()
                while isinstance(answer, AllHeld):
                    if self._left() <= 0 or self._same_run(answer.holders):
                        return self._refusal(answer), 0.0
                    self.met = self.met or next(iter(answer.holders), answer.gate)
                    first = yield from self._gate.enter(self._deadline)
                    if first is not None:
                        return self._refusal(AllHeld((), first)), 0.0
                    answer = yield from self._as_first()
                grant, began = answer
                if isinstance(grant, Refusal) or clock.now() < began + self._ttl:
                    return grant, began
                if any(queue.abandoned for queue in self._queues):
                    # What is given up by its token must not be asked for with that token again.
                    raise StoreUnavailable(self._store.alias, "it was silent for too long")
                # It was handed over long ago, or what came after it took longer than the lease.
                self._store.release(self.taken, self._token, grant.proof)
            raise always_late(self._store, self._ttl)
        except BaseException:
            self._gate.give_up()
            raise

    def abandon(self) -> None:
        """Have the renewal thread release what the store may have granted; raises nothing."""
        for name in self.names:
            renewal.abandon(name, self._token, self._ttl, self._store, note=self._note)

    def _at_once(self) -> AllHeld | tuple[Grant | Refusal, float]:
        """Take a permit that is free, if nobody waits."""
        store = self._store
        for _ in range(MAX_LATE_GRANTS):
            asked = clock.now()
            answer = self._ask_for_any(self._gate.name)
            if isinstance(answer, OneOf):
                won = self._in_time(answer, asked)
                if won is not None:
                    return won
                continue
            there = (answer.gate, *answer.holders)
            gone = [info for info in there if info is not None and self._take_over(store, info)]
            if not gone:
                break
        if isinstance(answer, OneOf):
            raise always_late(store, self._ttl)
        return answer

    def _ask_for_any(self, gate: str | None) -> OneOf | AllHeld:
        return self._store.acquire_any(
            self.names, gate, self._token, self._ttl, self._owner, self._note
        )

    def _in_time(self, answer: OneOf, asked: float) -> tuple[Grant | Refusal, float] | None:
        if clock.now() < asked + self._ttl:
            return self._won(answer.name, answer.grant, asked, answer.others)
        # The process was stopped for longer than the lease.
        self._store.release(answer.name, self._token, answer.grant.proof)
        return None

    def _as_first(self) -> Steps[AllHeld | tuple[Grant | Refusal, float]]:
        """Wait for any permit, as the holder of the gate. `AllHeld`: the gate was lost."""
        store = self._store
        if type(store).acquire_any is not BaseStore.acquire_any:
            # A permit may be free by now. To ask for all at once costs less than to join and leave
            # the queue of each: without this, ten permits that are in use for ten milliseconds each
            # change hands five times more slowly.
            asked = clock.now()
            answer = self._ask_for_any(None)
            won = self._in_time(answer, asked) if isinstance(answer, OneOf) else None
            if won is not None:
                self._gate.leave()
                return won
        owner = {**self._owner, SINCE: self._gate.since}
        queues = [
            PermitQueue(store, name, self._token, self._ttl, owner, self._take_over, self._note)
            for name in self.names
        ]
        self._queues = queues
        try:
            won = yield from self._in_queues(queues)
            if won is not None:
                self._gate.leave()
                return won
            # Somebody else may be the first by now.
            found = leave_queues(queues)
            return AllHeld((), None) if found is None else self._won(*found)
        except StoreUnavailable:
            for queue in queues:
                queue.drop()
            raise
        except BaseException:
            for queue in queues:
                queue.quit()
            raise

    def _in_queues(
        self, queues: Sequence[PermitQueue]
    ) -> Steps[tuple[Grant | Refusal, float] | None]:
        turn = max(TURN_SECONDS, TURN_SECONDS_FOR_EACH * len(queues))
        at = 0
        while self._gate.keep():
            at = (at + 1) % len(queues)
            listened = False
            # The one at `at` is waited for. It is the last, so that the others were asked before.
            for queue in (*queues[at + 1 :], *queues[: at + 1]):
                patience = 0.0
                if queue is queues[at] and queue.listens:
                    patience, listened = max(0.0, min(turn, self._left())), True
                found = yield from queue.look(patience)
                if found is not None:
                    grant, began = found
                    leave_queues([other for other in queues if other is not queue], release=True)
                    return self._won(queue.name, grant, began, None)
            if self._left() <= 0:
                late = leave_queues(queues)
                if late is not None:
                    return self._won(*late)
                # Somebody may have deleted a permit's key, which tells nobody.
                asked = clock.now()
                answer = self._ask_for_any(None)
                if isinstance(answer, AllHeld):
                    return self._refusal(answer), 0.0
                return self._won(answer.name, answer.grant, asked, answer.others)
            if not listened:
                next_look = min(queue.asks_at for queue in queues) - clock.now()
                pause = turn if any(queue.listens for queue in queues) else LONGEST_PAUSE_SECONDS
                yield Pause(max(0.0, min(next_look, pause, self._left(), self._gate.left())))
        return None

    def _won(
        self, name: str, grant: Grant, began: float, others: Sequence[LockInfo] | None
    ) -> tuple[Grant | Refusal, float]:
        """Take the granted permit, unless another run of the same message has one."""
        if self._task_id is not None:
            if others is None:
                found = [self._store.get(other) for other in self.names if other != name]
                others = [info for info in found if info is not None]
            same = self._same_run(others)
            if same is not None:
                self._store.release(name, self._token, grant.proof)
                return Refusal(same), 0.0
        self.taken = name
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
                and not self._take_over(self._store, holder)
            ):
                return holder
        return None

    def _refusal(self, answer: AllHeld) -> Refusal:
        """The refusal with the holder that tells the caller most: another run of the same message,
        or else the one that ends first."""
        holders = list(answer.holders)
        if not holders:
            # All of them only where one of them matters more than the others.
            wants_all = self._task_id is not None
            for name in self.names:
                info = self._store.get(name)
                if info is not None:
                    holders.append(info)
                    if not wants_all:
                        break
        same = self._same_run(holders)
        if same is None and holders:
            same = min(holders, key=lambda info: math.inf if info.ttl is None else info.ttl)
        if same is None:
            # All are free at this moment, and the first of the waiters is about to take one.
            same = answer.gate or LockInfo(
                self.names[0], 0.0, None, None, Owner(), self._store.alias, ""
            )
        return Refusal(same)

    def _left(self) -> float:
        return math.inf if self._deadline is None else self._deadline - clock.now()
