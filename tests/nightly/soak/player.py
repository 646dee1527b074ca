"""A plain process that uses locks in all ways: ``python -m tests.nightly.soak.player UNTIL SEED``.

It begins nothing after UNTIL or SIGTERM. When all that it holds is given back, it makes a file
that says so, and waits for SIGTERM.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from functools import partial
from typing import Any

import django

from django_tasklock import Lease, locks
from django_tasklock.leader import lead
from tests.nightly.chaos import NAMES
from tests.nightly.chaos.history import now
from tests.nightly.chaos.play import Player
from tests.nightly.chaos.player import Moves
from tests.nightly.soak.book import book, look_after, rested_file

TTLS, HOLDS, PAUSES = (0.8, 3.0), (0.0, 0.6), (0.2, 1.2)
LEADS_SECONDS, LEADS_TTL_SECONDS = (0.5, 2.5), 2.0
THREADS = 2
stopped = threading.Event()


class Soaking(Player):
    """One thread of a plain process: what chaos plays, less often, and more."""

    looks = (0.05, 0.2)

    def _move(self, call: str) -> None:
        moves = {
            self._take: 8, self._clear: 1, self._several: 2, self._extend: 3, self._hold_up: 1,
            self._look: 3,
        }  # fmt: skip
        move = self._chance.choices(list(moves), weights=list(moves.values()))[0]
        move(call, self._chance.choice(NAMES))

    def _pause(self) -> float:
        return self._chance.uniform(*PAUSES)

    def _begin(self, call: str, name: str, ttl: float, wait: float | None) -> None:
        self._write("asked", call, name, ttl=ttl, wait=wait)

    def _granted(self, call: str, lease: Lease) -> None:
        end = now() + lease.remaining
        self._write("granted", call, token=lease.token, fence=lease.fence, end=end)

    def _give_back(self, call: str, lease: Lease) -> None:
        self._write("releasing", call)
        self._write("released", call, said=lease.release())

    def _several(self, call: str, _: str) -> None:
        """All or none."""
        chance = self._chance
        names, ttl = chance.sample(NAMES, 2), chance.uniform(*TTLS)
        wait = chance.uniform(0, 5)
        calls = {name: f"{call}/{name}" for name in names}
        for name in names:
            self._begin(calls[name], name, ttl, wait)
        leases = locks.acquire_all(names, ttl=ttl, wait=wait, renew=chance.random() < 0.5)
        if leases is None:
            for name in names:
                self._write("refused", calls[name])
            return
        for lease in leases:
            self._granted(calls[lease.name], lease)
        time.sleep(chance.uniform(*HOLDS))
        for lease in leases:
            self._give_back(calls[lease.name], lease)

    def _extend(self, call: str, name: str) -> None:
        """By hand, once or twice."""
        ttl, wait = self._chance.uniform(*TTLS), self._chance.uniform(0, 6)
        self._begin(call, name, ttl, wait)
        lease = locks.acquire(name, ttl=ttl, wait=wait)
        if lease is None:
            self._write("refused", call)
            return
        self._granted(call, lease)
        for _ in range(self._chance.choice([1, 2])):
            time.sleep(ttl * self._chance.uniform(0.1, 0.8))
            if not lease.extend(ttl=ttl):
                self._write("lost", call)
                return
            self._write("held", call, end=now() + lease.remaining)
        self._give_back(call, lease)

    def _hold_up(self, call: str, name: str) -> None:
        """As an operator, who clears the hold after a moment."""
        ttl = self._chance.uniform(*TTLS)
        self._begin(call, name, ttl, 3.0)
        info = locks.hold(name, ttl, by="an operator", reason="a soak", wait=3.0)
        if info is None:
            self._write("refused", call)
            return
        end = now() + (info.ttl or 0.0)
        self._write("granted", call, token=info.token, fence=info.fence, end=end)
        time.sleep(ttl * self._chance.uniform(0.1, 0.7))
        self._write("releasing", call)
        locks.clear(name, token=info.token)

    def _look(self, call: str, name: str) -> None:
        listed = locks.list(prefix="seat:", limit=10)
        assert all(info.name.startswith("seat:") for info in listed)
        assert locks.count() >= 0
        assert len(locks.history(limit=20)) <= 20


class Leads(Moves):
    """The thread that leads, from time to time."""

    def move(self, call: str) -> None:
        chance, current, ended = self._chance, "", now()
        self._ask(call, ended)

        def run(lease: Lease) -> None:
            nonlocal current, ended
            if current:  # It had lost its lease, and leads again.
                self._ask(f"{current}+", ended)
            current = f"{current}+" if current else call
            end = now() + lease.remaining
            self._write("granted", current, token=lease.token, fence=lease.fence, end=end)

            def over() -> float | None:
                return now() + lease.remaining if lease.held else None

            if look_after(current, over, chance.uniform(*LEADS_SECONDS)):
                self._write("releasing", current)
            ended = now()

        lead("leader", run, ttl=LEADS_TTL_SECONDS)

    def _ask(self, call: str, at: float) -> None:
        self._write("asked", call, "leader", at=at, ttl=LEADS_TTL_SECONDS, wait=None)


def main(until: str, seed: str) -> None:
    faulthandler.register(signal.SIGUSR1)
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    django.setup()

    def goes_on() -> bool:
        return now() < float(until) and not stopped.is_set()

    threads: list[Any] = []
    for number in range(THREADS):
        player = Soaking(book(), str(number), seed)
        threads.append(partial(player.run, goes_on, player._move, player._pause))
    leads = Leads(book(), "leads", seed)
    threads.append(partial(leads.run, goes_on, leads.move, lambda: 0.5))
    running = [threading.Thread(target=each) for each in threads]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    rested_file(os.environ["SOAK_NAME"]).touch()
    stopped.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
