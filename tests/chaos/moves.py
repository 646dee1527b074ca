"""What one thread of a player does with the locks, at random, and writes down."""

from __future__ import annotations

import time

from django_tasklock import LeaseLost, LockNotAcquired, lock, locks
from django_tasklock._engine.lease import Lease
from tests.chaos.bounds import KEPT, LONGEST_TTL_SECONDS, LONGEST_WAIT_SECONDS
from tests.chaos.calls import INTERRUPTED_SECONDS
from tests.chaos.forks import in_a_fork
from tests.chaos.history import History, now
from tests.chaos.interrupts import Interrupts
from tests.chaos.operator_moves import OperatorMoves

__all__ = ["Moves"]


class Moves(OperatorMoves):
    """One thread's part in the game.

    Args:
        seed: what the thread does depends on this, and on its own name, alone.
        until: when to begin nothing more, on `now`.
        interrupts: those of the main thread; others get some that never raise.
    """

    def __init__(
        self, history: History, thread: int, seed: str, until: float, interrupts: Interrupts
    ) -> None:
        super().__init__(history, thread, seed, interrupts)
        self._until = until

    def run(self) -> None:
        """Play until the time is over; a lease that is held then is given back."""
        chance = self._chance
        moves = [self._acquire, self._block, self._keep, self._clear, self._look]
        while now() < self._until:
            chance.choices(moves, weights=[62, 18, 4, 6, 10])[0]()
            if self._hurried:
                # At once, on a connection that may have been interrupted a moment ago.
                self._hurried = False
            else:
                pauses = [0.0, 0.0, chance.uniform(0, 0.01), chance.uniform(0, 0.3)]
                time.sleep(chance.choice(pauses))

    def _acquire(self) -> None:
        call, name = self._begin()
        ttl, wait, renew = self._ttl(), self._wait(), self._chance.random() < 0.4
        lease = self._ask(call, name, ttl, wait, renew)
        if lease is None:
            return
        brief = ttl < 1.5  # Others wait for it meanwhile.
        lapses = brief and not renew and self._chance.random() < 0.15
        self._hold(call, lease, LONGEST_TTL_SECONDS + 1 if lapses else self._moment())
        if brief and self._chance.random() < 0.08:
            self._write("dropped", call, name)
        else:
            self._release(call, lease)

    def _keep(self) -> None:
        """Hold a lease for longer than its ttl, so that it has to be renewed."""
        call, name = self._begin(KEPT)
        ttl = self._chance.uniform(2, LONGEST_TTL_SECONDS)
        lease = self._ask(call, name, ttl, self._chance.uniform(0, 2), renew=True)
        if lease is not None:
            self._hold(call, lease, ttl * self._chance.uniform(1.1, 1.5), extends=False)
            self._release(call, lease)

    def _ask(
        self, call: str, name: str, ttl: float, wait: float | None, renew: bool
    ) -> Lease | None:
        self._write("asked", call, name, ttl=ttl, wait=wait, renew=renew, verb="acquire")
        answer = self._try(
            "acquire", call, name, lambda: locks.acquire(name, ttl=ttl, wait=wait, renew=renew)
        )
        if answer is None:
            return None
        if answer.value is None:
            self._write("refused", call, name)
        else:
            self._granted(call, answer.value)
        return answer.value

    def _release(self, call: str, lease: Lease) -> None:
        self._write("releasing", call, lease.name)
        said = self._try("release", call, lease.name, lambda: lease.release())
        if said is not None:
            self._write("released", call, lease.name, said=said.value)

    def _block(self) -> None:
        call, name = self._begin()
        ttl, wait, renew = self._ttl(), self._wait(), self._chance.random() < 0.7
        self._write("asked", call, name, ttl=ttl, wait=wait, renew=renew, verb="block")
        interrupts, part = self._interrupts, "acquire"
        try:
            interrupts.arm(INTERRUPTED_SECONDS)
            with lock(name, ttl=ttl, wait=wait, renew=renew) as lease:
                interrupts.armed = False
                part = "hold"
                self._granted(call, lease)
                interrupts.arm(INTERRUPTED_SECONDS)
                self._hold(call, lease, self._moment())
                interrupts.armed = False
                self._write("releasing", call, name)
                part = "release"
                interrupts.arm(INTERRUPTED_SECONDS)
            interrupts.armed = False
            self._write("released", call, name, said=True)
        except LockNotAcquired as error:
            interrupts.armed = False
            token = error.holder.token if error.holder else None
            self._write("refused", call, name, token=token)
        except LeaseLost:
            interrupts.armed = False
            self._write("released", call, name, said=False)
        except BaseException as error:
            interrupts.armed = False
            self._failed(part, call, name, error)

    def _hold(self, call: str, lease: Lease, seconds: float, *, extends: bool = True) -> None:
        """Hold a lease for some time, or until it is lost, and look at it again and again."""
        over = now() + seconds
        while True:
            # What is held after this moment was held at this moment: over is final.
            asked = now()
            if not lease.held:
                self._write("lost", call, lease.name)
                return
            before = now()
            self._write("held", call, lease.name, at=asked, end=before + lease.remaining)
            left = over - now()
            if left <= 0:
                return
            if extends and self._chance.random() < 0.06:
                self._extend(call, lease)
            if self._interrupts.never and self._chance.random() < 0.02:
                self._fork(call, lease)
            time.sleep(min(left, self._chance.uniform(0.001, 0.06)))

    def _extend(self, call: str, lease: Lease) -> None:
        ttl = self._ttl()
        self._write("extending", call, lease.name, ttl=ttl)
        # A block has armed its own, and a wait of its own for it.
        said = self._try("extend", call, lease.name, lambda: lease.extend(ttl))
        if said is not None:
            self._write("extended", call, lease.name, said=said.value)

    def _fork(self, call: str, lease: Lease) -> None:
        wrong = in_a_fork(lease)
        if wrong:
            self._write("raised", call, lease.name, verb="fork", error=wrong, where="a child")

    def _granted(self, call: str, lease: Lease) -> None:
        at = now()
        self._write(
            "granted", call, lease.name, at=at, token=lease.token, fence=lease.fence,
            end=at + lease.remaining,
        )  # fmt: skip

    def _ttl(self) -> float:
        chance = self._chance
        return (
            chance.uniform(0.3, 3)
            if chance.random() < 0.75
            else chance.uniform(3, LONGEST_TTL_SECONDS)
        )

    def _wait(self) -> float | None:
        chance = self._chance
        waits = [0.0, chance.uniform(0.01, 1), chance.uniform(1, LONGEST_WAIT_SECONDS), None]
        # Who can be interrupted begins many calls, the others wait.
        main = self._thread.endswith("/0")
        return chance.choices(waits, weights=[45, 37, 16, 2] if main else [20, 20, 50, 10])[0]

    def _moment(self) -> float:
        chance = self._chance
        longest = chance.choices([0.0, 0.02, 0.2, 1.5], weights=[20, 45, 28, 7])[0]
        return chance.uniform(0, longest)
