"""One side of a comparison: a process with one version of the package, and its own Redis.

Started by its path with ``PYTHONPATH`` at the version's tree, and uses only what every version has:
the public API. Reads lines ``WORK TIMES`` and answers each with the seconds that it took, and the
seconds of processor time of this process.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

import django
from django.conf import settings

THREADS = 8
LISTED = 1000


def set_up() -> None:
    """Set Django up in this process, on the Redis of ``BENCHMARK_REDIS_URL``."""
    url = os.environ["BENCHMARK_REDIS_URL"]
    settings.configure(
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_tasklock"],
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}},
        USE_TZ=True,
    )
    django.setup()


def works() -> dict[str, Callable[[int], None]]:
    """Each work by its name; it is called with how often to do it."""
    from celery import Celery

    from django_tasklock import lock, locks
    from django_tasklock.celery import LockedTask

    app = Celery("beside", broker="memory://")
    app.conf.task_ignore_result = True

    @app.task(base=LockedTask, acks_late=True)
    def task(number: int) -> None: ...

    held = [locks.acquire(f"held:{n}", ttl=3600) for n in range(LISTED)]
    assert all(held)

    def pair(times: int) -> None:
        for _ in range(times):
            lease = locks.acquire("pair", ttl=60)
            assert lease is not None
            lease.release()

    def block(times: int) -> None:
        for _ in range(times):
            with lock("block", ttl=60):
                pass

    def refused(times: int) -> None:
        for _ in range(times):
            assert locks.acquire("held:0", ttl=60) is None

    def extend(times: int) -> None:
        lease = held[0]
        assert lease is not None
        for _ in range(times):
            assert lease.extend(3600)

    def get(times: int) -> None:
        for _ in range(times):
            assert locks.get("held:0")

    def names(times: int) -> None:
        for _ in range(times):
            assert len([info.name for info in locks.list(limit=100)]) == 100

    def fields(times: int) -> None:
        for _ in range(times):
            read = [(info.name, info.token, info.owner.pid) for info in locks.list(limit=100)]
            assert len(read) == 100

    def turns(times: int) -> None:
        left = [times // THREADS] * THREADS

        def work(which: int) -> None:
            while left[which]:
                lease = locks.acquire("turns", ttl=60, wait=60)
                assert lease is not None
                left[which] -= 1
                lease.release()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def run(times: int) -> None:
        for number in range(times):
            task.apply((number,), throw=True)

    return {
        "acquire + release": pair,
        "with lock()": block,
        "acquire, refused": refused,
        "extend": extend,
        "get": get,
        "list of 100, names": names,
        "list of 100, all fields": fields,
        f"wait queue of {THREADS} threads": turns,
        "task": run,
    }


def main() -> None:
    set_up()
    by_name = works()
    print("ready", flush=True)
    for line in sys.stdin:
        name, _, times = line.strip().rpartition(" ")
        began, used = time.perf_counter(), time.process_time()
        by_name[name](int(times))
        print(time.perf_counter() - began, time.process_time() - used, flush=True)


if __name__ == "__main__":
    main()
