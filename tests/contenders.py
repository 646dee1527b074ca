"""
Processes that take turns at locks while they are killed, at work and while they wait.

``python -m tests.contenders LEDGER SEED KIND PROCESSES TURNS``: each takes and releases locks of
one of `KINDS`, again and again; one that is killed is replaced. After so many turns all are killed.
What they do is in the ledger, one line a deed, in the order in which the kernel appended them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import Random

from django_tasklock import Lease, LockNotAcquired, lock, locks

NAMES = [f"seat:{number}" for number in range(5)]
NAME = NAMES[0]
SLOTS = 3
TTL_SECONDS = 60.0
"""seconds; longer than the whole run, so that every lease that is lost stalls it"""
WORK_SECONDS = 0.02
HELD_SECONDS = 0.3
"""seconds for which a lock that cools stays taken"""
KILL_SECONDS = 0.1
"""between two kills, about"""
STRUCK = 5
"""holders that are killed at work, at least"""
DOOM_SECONDS = 0.004
"""within which, of the release of a lock that cools, its holder kills itself"""


@dataclass(frozen=True)
class Deed:
    """``what``: "E" on entering, "L" on leaving, "R" after a release, "K" for somebody killed.

    ``fence``: 0 of the writer, which has none of a permit.
    ``asked``: when the lock was asked for.
    """

    what: str
    key: str
    fence: int
    pid: int
    asked: float
    at: float


class Ledger:
    """A file that many processes append to, in one order."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._read = 0
        self._deeds: list[Deed] = []

    def write(
        self, what: str, key: str, fence: int | None, pid: int = 0, asked: float = 0.0
    ) -> None:
        words = (what, key, fence or 0, pid or os.getpid(), asked, time.monotonic())
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def deeds(self) -> list[Deed]:
        size = os.fstat(self._file).st_size
        # The last line may be written right now.
        new, end, _ = os.pread(self._file, size - self._read, self._read).rpartition(b"\n")
        self._read += len(new) + len(end)
        for line in new.decode().splitlines():
            what, key, fence, pid, asked, at = line.split()
            self._deeds.append(Deed(what, key, int(fence), int(pid), float(asked), float(at)))
        return self._deeds

    def at_work(self) -> set[int]:
        """Who has entered and not left."""
        inside = {deed.key: deed for deed in self.deeds() if deed.what in "EL"}
        return {deed.pid for deed in inside.values() if deed.what == "E"}

    @contextmanager
    def inside(self, asked: float, *leases: Lease) -> Iterator[None]:
        for lease in leases:
            self.write("E", key_of(lease), lease.fence, asked=asked)
        yield
        for lease in leases:
            self.write("L", key_of(lease), lease.fence)


def key_of(lease: Lease) -> str:
    """What one process has for itself: a lock, or a permit of one."""
    return f"{lease.name}/{lease.slot}"


def plain(ledger: Ledger, chance: Random, wait: float | None = None) -> None:
    asked = time.monotonic()
    with lock(NAME, ttl=TTL_SECONDS, wait=wait) as lease, ledger.inside(asked, lease):
        time.sleep(chance.uniform(0, WORK_SECONDS))


def asking(ledger: Ledger, chance: Random) -> None:
    """Again and again: where waiters poll, a long run would be mostly pauses."""
    try:
        plain(ledger, chance, wait=0)
    except LockNotAcquired:
        time.sleep(chance.uniform(0, WORK_SECONDS))


def permits(ledger: Ledger, chance: Random) -> None:
    asked = time.monotonic()
    with lock(NAME, ttl=TTL_SECONDS, wait=None, slots=SLOTS) as lease, ledger.inside(asked, lease):
        time.sleep(chance.uniform(0, 3 * WORK_SECONDS))


def readers(ledger: Ledger, chance: Random) -> None:
    """Every fourth is the writer, which is at work in the place of all readers."""
    if chance.random() < 0.75:
        permits(ledger, chance)
        return
    with lock(NAME, ttl=TTL_SECONDS, wait=None, slots=SLOTS, exclusive=True):
        keys = [f"{NAME}#{slot}/{slot}" for slot in range(1, SLOTS + 1)]
        for key in keys:
            ledger.write("E", key, None)  # Its fence is that of another lock.
        time.sleep(chance.uniform(0, WORK_SECONDS))
        for key in keys:
            ledger.write("L", key, None)


def several(ledger: Ledger, chance: Random) -> None:
    names, asked = chance.sample(NAMES, chance.randint(2, 4)), time.monotonic()
    with lock(names, ttl=TTL_SECONDS, wait=None) as leases, ledger.inside(asked, *leases):
        time.sleep(chance.uniform(0, WORK_SECONDS))


def reentrant(ledger: Ledger, chance: Random) -> None:
    """A block within its own block, in which another thread of the process is refused."""

    def intrude() -> None:
        with suppress(LockNotAcquired), lock(NAME, wait=0, reentrant=True) as lease:
            ledger.write("E", key_of(lease), lease.fence)

    asked = time.monotonic()
    with lock(NAME, ttl=TTL_SECONDS, wait=None, reentrant=True) as outer:
        with ledger.inside(asked, outer), lock(NAME, reentrant=True) as inner:
            assert inner.token == outer.token
            thread = threading.Thread(target=intrude)
            thread.start()
            time.sleep(chance.uniform(0, WORK_SECONDS))
            thread.join()
        outer.assert_held()


def cooling(ledger: Ledger, chance: Random) -> None:
    """Half of the holders kill themselves around their release, and nobody else is killed."""
    asked = time.monotonic()
    lease = locks.acquire(NAME, ttl=TTL_SECONDS, hold_at_least=HELD_SECONDS)
    if lease is None:
        time.sleep(chance.uniform(0, WORK_SECONDS))
        return
    with ledger.inside(asked, lease):
        if doomed := chance.random() < 0.5:
            doom = (os.getpid(), signal.SIGKILL)
            threading.Timer(chance.uniform(0, DOOM_SECONDS), os.kill, doom).start()
            time.sleep(chance.uniform(0, DOOM_SECONDS))
    assert lease.release(), "it was not ours to release"
    ledger.write("R", key_of(lease), lease.fence)
    while doomed:
        time.sleep(1)


Turn = Callable[[Ledger, Random], object]
KINDS: dict[str, Turn] = {
    "plain": plain,
    "asking": asking,
    "permits": permits,
    "readers": readers,
    "several": several,
    "reentrant": reentrant,
    "cooling": cooling,
}


def forked(turn: Turn, ledger: Ledger, chance: Random) -> int:
    """The pid of a child of this process, which takes turns until it is killed."""
    pid = os.fork()
    if pid == 0:
        try:
            while True:
                turn(ledger, chance)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)
    return pid


def main(path: str, seed: str, kind: str, processes: str, turns: str) -> None:
    import django

    django.setup()
    # Now, and not in each child. The children make connections of their own.
    import django_redis.cache  # noqa: F401

    from django_tasklock.stores.database import DatabaseStore  # noqa: F401
    from django_tasklock.stores.redis import RedisStore  # noqa: F401

    chance, ledger = Random(int(seed)), Ledger(path)

    def start() -> int:
        return forked(KINDS[kind], ledger, Random(chance.getrandbits(32)))

    living = {start() for _ in range(int(processes))}
    struck = 0
    while sum(deed.what == "E" for deed in ledger.deeds()) < int(turns) or struck < STRUCK:
        time.sleep(chance.uniform(0, 2 * KILL_SECONDS))
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            pid, status = ended
            assert status == signal.SIGKILL, f"{pid} ended with {status}"
            ledger.write("K", "-", 0, pid)
            living.remove(pid)
            living.add(start())
        # Half of them at work: on a busy machine hardly any would be, if chance alone decided.
        victims = living & ledger.at_work() if chance.random() < 0.5 else living
        if kind == "cooling":
            struck = STRUCK
        elif victims:
            victim = chance.choice(sorted(victims))
            struck += victim in ledger.at_work()
            os.kill(victim, signal.SIGKILL)
    for pid in living:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        ledger.write("K", "-", 0, pid)


if __name__ == "__main__":
    main(*sys.argv[1:])
