"""
Processes that take permits of one name while they are killed, at work and while they wait.

``python -m tests.permit_contenders LEDGER SEED PROCESSES ROUNDS KILLS``: as `tests.contenders`, but
`SLOTS` of them are inside at once. A line of the ledger is ``E slot fence pid`` on entering,
``L slot fence pid`` on leaving, and ``K pid`` for somebody killed.
"""

from __future__ import annotations

import os
import sys
import time
from random import Random

import django

from tests.contenders import TTL_SECONDS, Ledger
from tests.several_contenders import main

NAME = "pool"
SLOTS = 3


def work(ledger: Ledger, rounds: int, seed: int) -> None:
    from django_tasklock import lock

    chance = Random(seed)
    for _ in range(rounds):
        with lock(NAME, ttl=TTL_SECONDS, wait=None, slots=SLOTS) as lease:
            ledger.write("E", lease.slot, lease.fence, os.getpid())
            time.sleep(chance.uniform(0, 0.1))
            ledger.write("L", lease.slot, lease.fence, os.getpid())


def inside(ledger: Ledger) -> set[int]:
    """The processes that have entered and not left."""
    found: set[int] = set()
    for line in ledger.lines():
        words = line.split()
        if words[0] == "E":
            found.add(int(words[3]))
        elif words[0] == "L":
            found.discard(int(words[3]))
    return found


def holder_or_waiter(ledger: Ledger, living: list[int], kills: int, chance: Random) -> int | None:
    """Holders and waiters by turns, once they are at it."""
    at_work = inside(ledger)
    victims = [pid for pid in living if (pid in at_work) is (kills % 2 == 0)]
    return chance.choice(victims) if victims and at_work else None


if __name__ == "__main__":
    django.setup()
    # Now, and not in each child. The children make connections of their own.
    import django_redis.cache  # noqa: F401

    import django_tasklock.stores.database.store
    import django_tasklock.stores.redis.store  # noqa: F401

    main(sys.argv[1], *map(int, sys.argv[2:]), work=work, victim_of=holder_or_waiter)
