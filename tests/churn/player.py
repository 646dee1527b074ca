"""One process that churns: ``python -m tests.churn.player NUMBER THREADS LOCKS COUNTS``.

It writes how many operations and log lines there were into the file COUNTS, twice a second, until
its standard input is closed.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random

HOLD_SECONDS = 0.02
PAUSE_SECONDS = 0.02
"""at most, so that a machine of two processors has some time left"""


class Counting(logging.Handler):
    """Counts the lines by their level, instead of writing them."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self._counts = counts

    def emit(self, record: logging.LogRecord) -> None:
        """Count one line. Called under the handler's own lock."""
        record.getMessage()
        self._counts["warnings" if record.levelno >= logging.WARNING else "infos"] += 1


def churn(number: int, names: int, over: threading.Event, counts: Counter[str]) -> None:
    """Take locks and give them back until it is over, in one thread."""
    from django_tasklock import LockNotAcquired, lock, locks

    chance = Random(number)
    while not over.is_set():
        name = f"churn:{int(names * chance.random() ** 2)}"  # Some are wanted more than others.
        way = chance.randrange(10)
        try:
            if way == 0:
                locks.list(limit=20)
            elif way == 1:
                # Left to expire.
                locks.acquire(name, ttl=0.05)
            elif way == 2:
                lease = locks.acquire(name, ttl=5)
                if lease is not None:
                    lease.extend(ttl=3)
                    locks.clear(name, token=lease.token)
            elif way == 3:
                with lock(f"slots:{name}", ttl=5, slots=2):
                    time.sleep(chance.uniform(0, HOLD_SECONDS))
            elif way == 4:
                with lock(f"cool:{name}", ttl=5, cooldown=0.05):
                    pass
            else:
                with lock(name, ttl=2, wait=chance.choice([0, 0.01, 2])):
                    time.sleep(chance.uniform(0, HOLD_SECONDS))
        except LockNotAcquired:
            counts["refused"] += 1
        counts[f"turns {number}"] += 1
        time.sleep(chance.uniform(0, PAUSE_SECONDS))


def main(number: int, threads: int, names: int, path: Path) -> None:
    import django

    django.setup()
    counts: Counter[str] = Counter()
    logger = logging.getLogger("django_tasklock")
    logger.setLevel(logging.INFO)
    logger.addHandler(Counting(counts))
    logger.propagate = False
    over = threading.Event()
    workers = [
        threading.Thread(target=churn, args=(number * 100 + each, names, over, counts))
        for each in range(threads)
    ]

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    for worker in workers:
        worker.start()
    while not over.wait(0.5):
        written = path.with_suffix(".new")
        turns = sum(count for what, count in counts.copy().items() if what.startswith("turns"))
        alive = sum(worker.is_alive() for worker in workers)
        written.write_text(json.dumps({**counts, "turns": turns, "alive": alive}))
        os.replace(written, path)
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
