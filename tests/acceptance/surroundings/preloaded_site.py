"""A site that gunicorn loads before it forks: by then it has taken locks, and holds one."""

from __future__ import annotations

import os
import time

from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_tasklock import locks

TTL_SECONDS = 6.0
"""of the lease that is renewed"""


def page(request: HttpRequest) -> HttpResponse:
    """Hold the lock for a moment, or for long; say in which process, and with which fence."""
    lease = locks.acquire("page", ttl=TTL_SECONDS, wait=60, renew=True)
    assert lease is not None
    try:
        if request.GET.get("file"):
            with open(request.GET["file"], "w") as file:
                file.write(str(os.getpid()))
        time.sleep(float(request.GET.get("seconds", "0.01")))
        lease.assert_held()
    finally:
        lease.release()
    return HttpResponse(f"{os.getpid()} {lease.fence}")


urlpatterns = [path("page/", page)]

application = get_wsgi_application()
# Before the fork: a connection, a subscription, the renewal's thread.
for _ in range(3):
    before = locks.acquire("page", ttl=60)
    assert before is not None
    assert locks.acquire("page", wait=0.01) is None
    before.release()
ours = locks.acquire("main", ttl=TTL_SECONDS, renew=True)
