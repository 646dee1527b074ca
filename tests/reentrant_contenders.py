"""
Processes that take one lock again inside its own block while they are killed at work.

``python -m tests.reentrant_contenders LEDGER SEED PROCESSES ROUNDS KILLS``: as
`tests.several_contenders`, with a service function that locks and calls others that lock the same.
A line of the ledger is ``E depth fence pid`` on entering a block, ``L depth fence pid`` on leaving
it, ``S pid`` for another thread of the process that was inside too, and ``K pid`` for somebody
killed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from random import Random

from tests.contenders import TTL_SECONDS, Ledger
from tests.several_contenders import main

NAME = "stock:1"


def work(ledger: Ledger, rounds: int, seed: int) -> None:
    chance = Random(seed)
    for _ in range(rounds):
        book(ledger, chance, 0, chance.randint(1, 3))


def book(ledger: Ledger, chance: Random, depth: int, innermost: int) -> None:
    from django_tasklock import lock

    with lock(NAME, ttl=TTL_SECONDS, wait=None, reentrant=True) as lease:
        ledger.write("E", depth, lease.fence, os.getpid())
        if depth < innermost:
            book(ledger, chance, depth + 1, innermost)
            lease.assert_held()
        else:
            thread = threading.Thread(target=intrude, args=[ledger], daemon=True)
            thread.start()
            time.sleep(chance.uniform(0, 0.02))
            thread.join()
        ledger.write("L", depth, lease.fence, os.getpid())


def intrude(ledger: Ledger) -> None:
    """Another thread of the same process: it shares nothing."""
    from django_tasklock import LockNotAcquired, lock

    try:
        with lock(NAME, ttl=TTL_SECONDS, wait=0, reentrant=True):
            ledger.write("S", os.getpid())
    except LockNotAcquired:
        pass


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]), work=work)
