"""
Processes that take turns at a lock that cools, and are killed at random around its release.

``python -m tests.cooling_contenders LEDGER SEED PROCESSES TURNS``: one that is killed is replaced,
until there were so many turns. The ledger has one line a deed, in the order in which the kernel
appended them: ``E fence pid asked moment`` on entering, where ``asked`` is the moment just before
the lock was asked for, ``R fence pid moment`` after the release has returned, ``K pid moment`` for
somebody who was killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from random import Random

from tests.contenders import TTL_SECONDS, Ledger, forked

NAME = "pay:7"
HELD_SECONDS = 0.3
"""seconds for which the name stays taken"""
KILLED_WITHIN_SECONDS = 0.004
"""from just before a release"""


def turns(ledger: Ledger) -> int:
    return sum(line[0] == "E" for line in ledger.lines())


def work(ledger: Ledger, chance: Random, most: int) -> None:
    from django_tasklock import locks

    while turns(ledger) < most:
        asked = time.monotonic()
        lease = locks.acquire(NAME, ttl=TTL_SECONDS, hold_at_least=HELD_SECONDS)
        if lease is None:
            time.sleep(chance.uniform(0, 0.02))
            continue
        ledger.write("E", lease.fence, os.getpid(), asked)
        doomed = chance.random() < 0.6
        if doomed:
            pause = chance.uniform(0, KILLED_WITHIN_SECONDS)
            threading.Timer(pause, os.kill, (os.getpid(), signal.SIGKILL)).start()
            time.sleep(chance.uniform(0, KILLED_WITHIN_SECONDS))
        assert lease.release(), "it was not ours to release"
        ledger.write("R", lease.fence, os.getpid())
        while doomed:
            time.sleep(1)


def start(ledger: Ledger, seed: int, most: int) -> int:
    return forked(lambda: work(ledger, Random(seed), most))


def main(path: str, seed: int, processes: int, most: int) -> None:
    import django

    django.setup()
    ledger, chance = Ledger(path), Random(seed)
    alive = {start(ledger, chance.getrandbits(32), most) for _ in range(processes)}
    while alive:
        pid, status = os.wait()
        alive.discard(pid)
        if os.WIFSIGNALED(status):
            ledger.write("K", pid)
            if turns(ledger) < most:
                alive.add(start(ledger, chance.getrandbits(32), most))
        elif status:
            sys.exit("one of them has failed")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
