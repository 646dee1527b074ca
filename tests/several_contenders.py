"""
Processes that take any subsets of a few locks while they are killed at work.

``python -m tests.several_contenders LEDGER SEED PROCESSES ROUNDS KILLS``: as `tests.contenders`,
but each round takes several locks, all or none. A line of the ledger is ``E name fence pid`` on
entering, ``L name fence pid`` on leaving, and ``K pid`` for somebody killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from random import Random

from tests.contenders import MOMENT_SECONDS, TTL_SECONDS, Ledger, forked

NAMES = [f"seat:{number}" for number in range(5)]
Work = Callable[[Ledger, int, int], None]
"""what a process does: with the ledger, so many rounds, by this seed"""
VictimOf = Callable[[Ledger, list[int], int, Random], "int | None"]
"""which of the living processes is killed now, if any; of so many kills that are left"""


def work(ledger: Ledger, rounds: int, seed: int) -> None:
    from django_tasklock import lock

    chance = Random(seed)
    for _ in range(rounds):
        chosen = chance.sample(NAMES, chance.randint(2, 4))
        with lock(chosen, ttl=TTL_SECONDS, wait=None) as leases:
            for lease in leases:
                ledger.write("E", lease.name, lease.fence, os.getpid())
            time.sleep(chance.uniform(0, 0.02))
            for lease in leases:
                ledger.write("L", lease.name, lease.fence, os.getpid())


def entered_last(ledger: Ledger, living: list[int], kills: int, chance: Random) -> int | None:
    """The process that entered last, if nobody has left since then and it lives."""
    lines = ledger.lines()
    last = int(lines[-1].split()[3]) if lines and lines[-1][0] == "E" else None
    return last if last in living else None


def main(
    path: str,
    seed: int,
    processes: int,
    rounds: int,
    kills: int,
    *,
    work: Work = work,
    victim_of: VictimOf = entered_last,
) -> None:
    """Let the processes work, and kill some of those that ``victim_of`` names."""
    import django

    django.setup()
    chance, ledger = Random(seed), Ledger(path)

    def start() -> int:
        child_seed = chance.randrange(2**32)
        return forked(lambda: work(ledger, rounds, child_seed))

    living = [start() for _ in range(processes)]
    while living:
        time.sleep(chance.uniform(0, MOMENT_SECONDS))
        for pid in list(living):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                assert status == 0, f"{pid} ended with {status}"
                living.remove(pid)
        victim = victim_of(ledger, living, kills, chance) if kills else None
        if victim is not None:
            kills -= 1
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
            ledger.write("K", victim)
            living.remove(victim)
            living.append(start())


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
