"""A process that plays: ``python -m tests.nightly.chaos.play FOLDER NAME SEED UNTIL``."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

from django_tasklock import Lease, LeaseLost, LockNotAcquired, lock, locks
from tests.nightly.chaos import LONGEST_TTL_SECONDS, LONGEST_WAIT_SECONDS, NAMES
from tests.nightly.chaos.history import History, now
from tests.nightly.chaos.player import Moves

THREADS = 4


class Player(Moves):
    """One thread, which begins nothing after ``until``; a lease that is held then is given back."""

    looks = (0.001, 0.06)
    """seconds between two looks at a lease: from and to"""

    def play(self, until: float) -> None:
        self.run(lambda: now() < until, self._move, self._pause)

    def _move(self, call: str) -> None:
        chance = self._chance
        (move,) = chance.choices([self._take, self._clear], [9, 1])
        move(call, chance.choices(NAMES, weights=[7, 5, 3, 3, 3])[0])

    def _pause(self) -> float:
        chance = self._chance
        return chance.choice([0.0, 0.0, chance.uniform(0, 0.01), chance.uniform(0, 0.3)])

    def _take(self, call: str, name: str) -> None:
        chance = self._chance
        ttl = chance.uniform(*chance.choices([(0.3, 3), (3, LONGEST_TTL_SECONDS)], [3, 1])[0])
        waits = [0.0, chance.uniform(0.01, 1), chance.uniform(1, LONGEST_WAIT_SECONDS), None]
        wait, renew = chance.choices(waits, [25, 25, 42, 8])[0], chance.random() < 0.5
        seconds = chance.uniform(0, chance.choices([0.0, 0.02, 0.2, 1.5], [15, 35, 30, 20])[0])
        if renew and chance.random() < 0.15:
            # For longer than its ttl, so that it has to be renewed.
            name, seconds = NAMES[-1], ttl * chance.uniform(1.1, 1.5)
        elif not renew and ttl < 1.5 and chance.random() < 0.2:
            seconds = LONGEST_TTL_SECONDS  # It lapses meanwhile.
        self._write("asked", call, name, ttl=ttl, wait=wait)
        try:
            with lock(name, ttl=ttl, wait=wait, renew=renew) as lease:
                end = now() + lease.remaining
                self._write("granted", call, token=lease.token, fence=lease.fence, end=end)
                self._hold(call, lease, seconds)
                self._write("releasing", call)
            self._write("released", call, said=True)
        except LockNotAcquired:
            self._write("refused", call)
        except LeaseLost:
            self._write("released", call, said=False)

    def _clear(self, call: str, name: str) -> None:
        """As an operator does, who needs a moment for it."""
        info = locks.get(name)
        time.sleep(self._chance.choice([0.0, self._chance.uniform(0, 0.3)]))
        if info is not None:
            since = now()
            self._write("clearing", call, name, token=info.token, since=since)
            locks.clear(name, token=info.token)
            self._write("cleared", call, name, token=info.token, since=since)

    def _hold(self, call: str, lease: Lease, seconds: float) -> None:
        """Hold a lease for some time, or until it is lost, and look at it again and again."""
        over = now() + seconds
        while True:
            # What is held after this moment was held at this moment: over is final.
            asked = now()
            if not lease.held:
                self._write("lost", call)
                return
            before = now()
            self._write("held", call, at=asked, end=before + lease.remaining)
            left = over - now()
            if left <= 0:
                return
            time.sleep(min(left, self._chance.uniform(*self.looks)))


def main(folder: str, name: str, seed: str, until: str) -> None:
    # A thread that never returns is asked where it is.
    faulthandler.register(signal.SIGUSR1)
    import django

    django.setup()
    history = History(Path(folder), name)
    for number in range(THREADS):
        player = Player(history, str(number), seed)
        threading.Thread(target=partial(player.play, float(until))).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
