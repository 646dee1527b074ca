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
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_tasklock import Lease

NAME = "video:1"
TTL_SECONDS = 60.0
"""seconds; longer than the whole run, so that every lease that is lost stalls it"""
MOMENT_SECONDS = 0.05
STOPS = 100
"""how often to try to stop a holder before it leaves"""
STOP_PAUSE_SECONDS = 0.0005
TAIL_BYTES = 4096
"""of the ledger, in which somebody has entered or left"""
TOLERANT = "TASKLOCK_TEST_TOLERANT"
"""an environment variable; if it is set, the store may not answer now and then"""
ASKING = "TASKLOCK_TEST_ASKING"
"""an environment variable; if it is set, the processes ask again and again, and do not wait in the
lock's queue: where waiters poll, most of a long run would be pauses"""


class Ledger:
    """A file that many processes append to, in one order."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, (*words, time.monotonic()))) + "\n").encode())

    def lines(self, most: int | None = None) -> list[str]:
        """All, or the whole ones among the last ``most`` bytes."""
        size = os.fstat(self._file).st_size
        at = 0 if most is None else max(0, size - most)
        return os.pread(self._file, size - at, at).decode().splitlines()[bool(at) :]


def work(ledger: Ledger, slot: int, rounds: int, seed: int) -> None:
    from django_tasklock import StoreUnavailable

    chance = Random(seed)
    for _ in range(rounds):
        lease = acquired(chance)
        ledger.write("E", lease.fence, os.getpid(), slot)
        if chance.random() < 0.2:
            time.sleep(chance.uniform(0, 0.03))
        lease.assert_held()
        ledger.write("L", lease.fence, os.getpid(), slot)
        try:
            assert lease.release() or TOLERANT in os.environ, "it was not ours to release"
        except StoreUnavailable:
            if TOLERANT not in os.environ:
                raise


def acquired(chance: Random) -> Lease:
    from django_tasklock import StoreUnavailable, locks

    wait = 0 if os.environ.get(ASKING) else None
    while True:
        lease = None
        try:
            lease = locks.acquire(NAME, ttl=TTL_SECONDS, wait=wait)
        except StoreUnavailable:
            if TOLERANT not in os.environ:
                raise
        if lease is not None:
            return lease
        time.sleep(chance.uniform(0, 0.01))


def done_by(ledger: Ledger) -> Counter[int]:
    """The rounds of each slot."""
    return Counter(int(line.split()[3]) for line in ledger.lines() if line[0] == "L")


def forked(work: Callable[[], object]) -> int:
    """Have a child of this process work, and end with 0, or with 1 if it raised. Return its pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid


def start(ledger: Ledger, slot: int, rounds: int, seed: int) -> int:
    return forked(lambda: work(ledger, slot, rounds, seed))


def holder(ledger: Ledger) -> int | None:
    """Who entered last, and has not left."""
    for line in reversed(ledger.lines(TAIL_BYTES)):
        if line[0] in "EL":
            return int(line.split()[2]) if line[0] == "E" else None
    return None


def stopped_holder(ledger: Ledger, living: Collection[int]) -> int | None:
    """Stop who has entered and has not left. None: again and again it had left meanwhile."""
    for _ in range(STOPS):
        pid = holder(ledger)
        if pid is None or pid not in living:
            time.sleep(STOP_PAUSE_SECONDS)
            continue
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if holder(ledger) == pid:
            return pid
        os.kill(pid, signal.SIGCONT)
    return None


def main(path: str, seed: int, processes: int, rounds: int, kills: int) -> None:
    import django

    django.setup()
    chance, ledger = Random(seed), Ledger(path)
    living = {
        start(ledger, slot, rounds, chance.randrange(2**32)): slot for slot in range(processes)
    }
    while living:
        time.sleep(chance.uniform(0, MOMENT_SECONDS) if kills else MOMENT_SECONDS)
        for pid in list(living):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                assert status == 0, f"{pid} ended with {status}"
                del living[pid]
        if kills and living:
            # Half of them at work: on a busy machine hardly any would be, if chance alone decided.
            at_work = stopped_holder(ledger, living) if chance.random() < 0.5 else None
            victim = at_work or chance.choice(list(living))
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
