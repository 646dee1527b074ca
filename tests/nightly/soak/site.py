"""The site of a soak: two views under `lock_view`, and a lock before the fork where it is loaded
before it (``SOAK_PRELOAD``)."""

from __future__ import annotations

import os
import random
from typing import Any

from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

application = get_wsgi_application()

from django_tasklock import StoreUnavailable, locks  # noqa: E402
from django_tasklock.views import lock_view  # noqa: E402
from tests.nightly.chaos.history import now  # noqa: E402
from tests.nightly.soak import TTL_SECONDS  # noqa: E402
from tests.nightly.soak.book import book, look_after, new_call, version  # noqa: E402

if os.environ.get("SOAK_PRELOAD"):
    import tests.preloaded_site  # noqa: F401 - it takes locks, and holds one.

SHORT, LONG, LONG_SHARE = (0.02, 0.3), (TTL_SECONDS * 0.9, TTL_SECONDS * 1.3), 0.1


def work(request: HttpRequest, name: str) -> HttpResponse:
    """A view has no lease: what holds the lock, the store says."""
    call, lock = new_call(), f"view:{name}"
    try:
        before, info = now(), locks.get(lock)
    except StoreUnavailable:
        return HttpResponse("the store is silent", status=503)
    if info is None or info.ttl is None or info.owner.pid != os.getpid():
        return HttpResponse("lost at once", status=503)
    last = now() + info.ttl
    asked = vars(request)["asked"]
    book().write("asked", call, lock, at=asked, wait=None, ttl=TTL_SECONDS)
    book().write(
        "granted", call, lock, token=info.token, fence=info.fence, end=before + info.ttl, row=0,
        task="view", version=version(),
    )  # fmt: skip

    def end() -> float | None:
        nonlocal last
        try:
            said = locks.get(lock)
        except StoreUnavailable:
            return last if last > now() else None
        if said is None or said.token != info.token:
            return None
        last = now() + (said.ttl or 0.0)
        return last

    chance = random.random()
    held = look_after(call, end, random.uniform(*(LONG if chance < LONG_SHARE else SHORT)))
    if held:
        book().write("releasing", call, finished=True)
    return JsonResponse({"held": held})


OPTIONS: Any = {"ttl": TTL_SECONDS, "outage_status": 503}
refusing = lock_view("view:{name}", status=409, **OPTIONS)(work)
patient = lock_view("view:{name}", wait=4, status=423, **OPTIONS)(work)


def asked(view: Any) -> Any:
    """The view, of whose lock it is known when it was asked for."""

    def outer(request: HttpRequest, name: str) -> HttpResponse:
        vars(request)["asked"] = now()
        answer: HttpResponse = view(request, name)
        return answer

    return outer


urlpatterns = [path("work/<name>/", asked(refusing)), path("wait/<name>/", asked(patient))]
