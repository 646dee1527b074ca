"""A site that uses locks before its server forks, and in each of its workers: WSGI and ASGI."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

from django.core.asgi import get_asgi_application
from django.core.cache import cache
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

application = get_wsgi_application()
asgi = get_asgi_application()

from django_tasklock import lock, locks  # noqa: E402
from django_tasklock.stores import stores  # noqa: E402

LONG = 600.0  # seconds; no lease of it ends within a test
RENEWED = 6.0  # seconds; a lease of it is renewed within a test


def before_the_fork() -> Any:
    """Wait for a lock and get it handed over, then hold one for good: all connections are open."""
    name = f"preload-{os.getpid()}"
    held = locks.acquire(name, ttl=LONG)
    assert held is not None
    waiter = threading.Thread(target=locks.acquire, args=[name], kwargs={"wait": LONG})
    waiter.start()
    while not getattr(locks.get(name), "waiters", 0):
        time.sleep(0.01)
    assert held.release()
    waiter.join()
    assert locks.clear(name)
    return locks.acquire(f"master-{os.getpid()}", ttl=RENEWED, renew=True)


MASTER = before_the_fork()


def connection() -> Any:
    """The number of the connection that a call of this process uses."""
    store: Any = stores["default"]
    return store.client.command("CLIENT", "ID")


MASTERS_CONNECTION = connection()


def told(lease: Any) -> JsonResponse:
    """Who ran under the lock: to be told while it is held."""
    return JsonResponse(
        {
            "pid": os.getpid(),
            "fence": lease.fence,
            "connection": connection(),
            "masters_connection": MASTERS_CONNECTION,
            "holds_masters": MASTER.held,
            "awaited": asyncio.run(answered()),
        }
    )


async def answered() -> bool:
    """Whether a call that is awaited has an answer: its threads are not the master's."""
    return await asyncio.wait_for(locks.ais_locked(f"preload-{os.getpid()}"), 20) is False


def work(request: HttpRequest, name: str) -> JsonResponse:
    """One after the other, whichever worker has the request; not before the key "go" is there."""
    with lock(name, ttl=RENEWED, wait=LONG) as lease:
        while not cache.get("go"):
            time.sleep(0.02)
        lease.assert_held()
        return told(lease)


async def awork(request: HttpRequest, name: str) -> JsonResponse:
    async with lock(name, ttl=RENEWED, wait=LONG) as lease:
        while not await cache.aget("go"):  # noqa: ASYNC110 - another process sets it
            await asyncio.sleep(0.02)
        lease.assert_held()
        return await asyncio.to_thread(told, lease)


urlpatterns = [path("work/<name>/", work), path("awork/<name>/", awork)]
