"""
A process that plays: ``python -m tests.chaos.player FOLDER NAME SEED UNTIL``.

When its threads are at rest it writes down what they left in the process, and lives on until its
input ends, so that the server can still be asked for its connections.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos.bounds import THREADS
from tests.chaos.history import History
from tests.chaos.interrupts import Interrupts
from tests.chaos.stepped_clock import step_the_clock


def main(folder: Path, name: str, seed: str, until: float) -> None:
    # A thread that never returns is asked where it is.
    faulthandler.register(signal.SIGUSR1)
    faulthandler.enable()
    if name.startswith("1."):
        step_the_clock()
    import django

    django.setup()
    # Python imports this codec with the first connection. An exception from a signal handler in the
    # middle of an import leaves the interpreter's import lock taken, and the process hangs.
    "localhost".encode("idna")
    from tests.chaos.moves import Moves

    _warm_up()
    history = History(folder, name)
    history.write("began", pid=os.getpid(), files=_files(), threads=threading.active_count())
    threads = [
        threading.Thread(target=Moves(history, number, seed, until, Interrupts(None)).run)
        for number in range(1, THREADS)
    ]
    for thread in threads:
        thread.start()
    # The one thread that gets signals plays as well.
    Moves(history, 0, seed, until, Interrupts(Random(f"{seed}/{name}/interrupts"))).run()
    for thread in threads:
        thread.join()
    threading.current_thread().name = f"{name}/rest"
    files = _files()
    spare = _spare_connections()
    history.write(
        "rested", files=files, threads=threading.active_count(), spare=spare, pid=os.getpid()
    )
    sys.stdin.read()
    # Not by way of the interpreter's end, which would tidy up.
    os._exit(0)


def _warm_up() -> None:
    """What the first call does, such as imports, would be held against it."""
    from django_tasklock import StoreUnavailable, locks

    try:
        lease = locks.acquire(f"seat:of-{os.getpid()}", ttl=1)
        if lease is not None:
            lease.release()
        locks.list()
    except StoreUnavailable:
        pass


def _files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _spare_connections() -> list[int]:
    """How many connections the cache's pool still gives, and how many it may give at most."""
    from django_redis import get_redis_connection

    pool = get_redis_connection("default").connection_pool
    taken: list[Any] = []
    try:
        while len(taken) < pool.max_connections:
            taken.append(pool.get_connection())
    except Exception:
        pass  # It has no more, or the server did not answer in time.
    for connection in taken:
        connection.disconnect()
        pool.release(connection)
    return [len(taken), pool.max_connections]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]))
