"""
Processes that take turns at one lock while they are killed at random.

``python -m tests.contenders LEDGER SEED PROCESSES ROUNDS KILLS``: each of the processes takes and
releases the lock until there were so many rounds by each; one that is killed is replaced. What
they do is in the ledger, one line a deed, in the order in which the kernel appended them:
``E fence`` on entering, ``L fence`` on leaving, ``K pid`` for somebody killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from random import Random

NAME = "video:1"
TTL = 60.0
"""seconds; longer than the whole run, so that every lease that is lost stalls it"""
MOMENT = 0.05


class Ledger:
    """A file that many processes append to, in one order."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, (*words, time.monotonic()))) + "\n").encode())

    def lines(self) -> list[str]:
        size = os.fstat(self._file).st_size
        return os.pread(self._file, size, 0).decode().splitlines()


def contend(ledger: Ledger, slot: int, rounds: int, seed: int) -> None:
    from django_tasklock import locks

    chance = Random(seed)
    for _ in range(rounds):
        lease = locks.acquire(NAME, ttl=TTL, wait=None)
        assert lease is not None
        ledger.write("E", lease.fence, os.getpid(), slot)
        if chance.random() < 0.2:
            time.sleep(chance.uniform(0, 0.01))
        lease.assert_held()
        ledger.write("L", lease.fence, os.getpid(), slot)
        assert lease.release(), "it was not ours to release"


def done_by(ledger: Ledger) -> Counter[int]:
    """The rounds of each slot."""
    return Counter(int(line.split()[3]) for line in ledger.lines() if line[0] == "L")


def start(ledger: Ledger, slot: int, rounds: int, seed: int) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            contend(ledger, slot, rounds, seed)
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid


def holder(ledger: Ledger) -> int | None:
    """Who entered last, and has not left."""
    for line in reversed(ledger.lines()):
        if line[0] in "EL":
            return int(line.split()[2]) if line[0] == "E" else None
    return None


def main(path: str, seed: int, processes: int, rounds: int, kills: int) -> None:
    import django

    django.setup()
    chance, ledger = Random(seed), Ledger(path)
    living = {
        start(ledger, slot, rounds, chance.randrange(2**32)): slot for slot in range(processes)
    }
    while living:
        time.sleep(chance.uniform(0, MOMENT) if kills else MOMENT)
        for pid in list(living):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                assert status == 0, f"{pid} ended with {status}"
                del living[pid]
        if kills and living:
            victim = chance.choice([holder(ledger), *chance.sample(list(living), 1)])
            if victim in living:
                kills -= 1
                os.kill(victim, signal.SIGKILL)
                os.waitpid(victim, 0)
                ledger.write("K", victim)
                slot = living.pop(victim)
                missing = rounds - done_by(ledger)[slot]
                if missing:
                    living[start(ledger, slot, missing, chance.randrange(2**32))] = slot


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
