"""One side of a comparison: a process with one version of the package, and its own Redis.

Started by its path with ``PYTHONPATH`` at the version's tree, and uses only what every version has:
the public API. Says which works there are, reads lines ``WORK TIMES``, and answers each with the
seconds that it took, and the seconds of processor time of this process.
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
    assert held[0] is not None
    extended = held[0].extend

    def pair() -> None:
        with lock("pair", ttl=60):
            pass

    def refused() -> None:
        assert locks.acquire("held:0", ttl=60) is None

    def page() -> None:
        read = [(info.name, info.token, info.owner.pid) for info in locks.list(limit=100)]
        assert len(read) == 100

    def turns(times: int) -> None:
        def work() -> None:
            for _ in range(times // THREADS):
                with lock("turns", ttl=60, wait=60):
                    pass

        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def repeated(once: Callable[[], object]) -> Callable[[int], None]:
        def many(times: int) -> None:
            for _ in range(times):
                once()

        return many

    return {
        "pair": repeated(pair),
        "refused": repeated(refused),
        "extend": repeated(lambda: extended(3600)),
        "get": repeated(lambda: locks.get("held:0")),
        "list of 100": repeated(page),
        "queue of 8 threads": turns,
        "task": repeated(lambda: task.apply((1,), throw=True)),
    }


def main() -> None:
    set_up()
    by_name = works()
    print(",".join(by_name), flush=True)
    for line in sys.stdin:
        name, _, times = line.strip().rpartition(" ")
        began, used = time.perf_counter(), time.process_time()
        by_name[name](int(times))
        print(time.perf_counter() - began, time.process_time() - used, flush=True)


if __name__ == "__main__":
    main()
