"""A site with async views that wait for locks, as uvicorn serves it: its settings and ASGI."""

from __future__ import annotations

import asyncio
import os
import threading

from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

application = get_asgi_application()

from django_tasklock import lock  # noqa: E402
from django_tasklock.views import lock_view  # noqa: E402

LONG = 60.0
inside: dict[str, int] = {}


async def block(request: HttpRequest, name: str) -> HttpResponse:
    async with lock(name, ttl=LONG, wait=LONG):
        inside[name] = inside.get(name, 0) + 1
        alone = inside[name] == 1
        await asyncio.sleep(0.001)
        inside[name] -= 1
    return HttpResponse("alone" if alone else "not alone")


@lock_view("view:{name}", ttl=LONG, wait=LONG)
async def view(request: HttpRequest, name: str) -> HttpResponse:
    return HttpResponse("alone")


@lock_view("view:{name}", ttl=LONG)
async def hold(request: HttpRequest, name: str) -> HttpResponse:
    await asyncio.sleep(LONG)
    return HttpResponse("held")


async def state(request: HttpRequest) -> JsonResponse:
    return JsonResponse(
        {
            "pid": os.getpid(),
            "threads": sum("tasklock" in thread.name for thread in threading.enumerate()),
        }
    )


urlpatterns = [
    path("block/<name>/", block),
    path("view/<name>/", view),
    path("hold/<name>/", hold),
    path("state/", state),
]
