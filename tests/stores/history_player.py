"""
A process that uses locks at random and writes down what it sees: ``python -m
tests.stores.history_player FOLDER NAME SEED``, until SIGTERM. `tests.stores.histories` starts some.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from django_tasklock import locks
from tests.nightly.chaos.history import History, now
from tests.nightly.chaos.player import Moves

LOCKS, PERMITS, SLOTS = ("plain:1", "plain:2"), "permits", 2
KEPT_SECONDS, SHORT_SECONDS = 10.0, (0.15, 0.5)
"""ttl of a lease that is released, so that only a takeover ends it early; of one that runs out"""
WORK_SECONDS, PAUSE_SECONDS = 0.05, 0.02


class Player(Moves):
    """One thread, until it is over."""

    def play(self, move: str, over: threading.Event) -> None:
        self._over = over
        self.run(lambda: not over.is_set(), getattr(self, move), self._pause)

    def _pause(self) -> float:
        return self._chance.uniform(0, PAUSE_SECONDS)

    def take(self, call: str) -> None:
        """Take a lock or a permit. Release it, or let its lease run out, extended once or not."""
        chance = self._chance
        runs_out = chance.random() < 0.5
        ttl = chance.uniform(*SHORT_SECONDS) if runs_out else KEPT_SECONDS
        of_permits = [(PERMITS, 1), (PERMITS, SLOTS), (PERMITS, SLOTS)]
        name, slots = chance.choice([(LOCKS[0], 1), (LOCKS[1], 1), *of_permits])
        wait, asked = chance.choice([0.0, 0.0, 0.0, 1.0]), now()
        lease = locks.acquire(name, ttl=ttl, wait=wait, slots=slots)
        if lease is None:
            return
        end = now() + lease.remaining
        held = name if slots == 1 else f"{name}#{lease.slot}"
        self._write("asked", call, held, at=asked, wait=wait, ttl=ttl)
        self._write("granted", call, held, token=lease.token, fence=lease.fence or 0, end=end)
        if runs_out and chance.random() < 0.3 and not self._over.wait(ttl * chance.random()):
            since = now()
            # One whose answer came after the end may have brought the lease back after a look.
            if lease.extend(ttl) and now() < end:
                end = now() + lease.remaining
                self._write("held", call, held, at=since, end=end, since=since, until=now())
            else:
                self._write("extended late", call, held, since=since, until=now())
        work = max(0.0, end - now()) if runs_out else chance.uniform(0, WORK_SECONDS)
        if not self._over.wait(work) and runs_out:
            return
        before = now()
        if lease.held:
            self._write("held", call, at=before, end=end)
        since = now()
        self._write("releasing", call, at=since)
        said = lease.release()
        self._write("released", call, held, said=said, since=since, until=now())

    def look(self, call: str) -> None:
        """Look at a lock; now and then clear what was seen, as an operator does."""
        of_permits = [PERMITS, *(f"{PERMITS}#{k}" for k in range(1, SLOTS + 1))]
        name = self._chance.choice([*LOCKS, *of_permits])
        since = now()
        if self._chance.random() < 0.5:
            self._write("looked", call, name, since=since, locked=locks.is_locked(name))
            return
        info = locks.get(name)
        self._write("looked", call, name, since=since, locked=info is not None)
        if info is not None and self._chance.random() < 0.1:
            self._over.wait(self._chance.uniform(0, WORK_SECONDS))
            since = now()
            self._write("clearing", call, name, token=info.token, since=since)
            locks.clear(name, token=info.token)
            self._write("cleared", call, name, token=info.token, since=since, until=now())


def play(history: History, seed: str, over: threading.Event, takers: int) -> None:
    """Have so many threads take leases, and one look at them, until it is over."""
    threads = []
    for name, move in [("looks", "look"), *((str(number), "take") for number in range(takers))]:
        player = Player(history, name, seed)
        threads.append(threading.Thread(target=player.play, args=(move, over)))
    for thread in threads:
        thread.start()
    history.write("begun")
    for thread in threads:
        while thread.is_alive():  # A signal may come to another thread: this one has to look.
            thread.join(0.1)


def main(folder: str, name: str, seed: str) -> None:
    import django

    django.setup()
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    play(History(Path(folder), name), seed, over, takers=2)


if __name__ == "__main__":
    main(*sys.argv[1:])
