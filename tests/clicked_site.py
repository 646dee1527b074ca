"""A site with a payment that must be made once, as gunicorn serves it: its settings and WSGI."""

from __future__ import annotations

import os
import time

from django.core.cache import cache
from django.core.wsgi import get_wsgi_application
from django.db.models import F
from django.http import HttpRequest, HttpResponse
from django.urls import path

application = get_wsgi_application()

from django_tasklock.views import lock_view  # noqa: E402
from tests.app.models import Job  # noqa: E402


def charge(order_id: int) -> HttpResponse:
    """Look, take a while, and write: which two at a time do twice."""
    if Job.objects.get(pk=order_id).status == "paid":
        return HttpResponse(f"paid before, says {os.getpid()}")
    time.sleep(0.3)
    Job.objects.filter(pk=order_id).update(status="paid", done_count=F("done_count") + 1)
    return HttpResponse(f"charged by {os.getpid()}")


def pay_unlocked(request: HttpRequest, order_id: int) -> HttpResponse:
    return charge(order_id)


@lock_view("pay:{order_id}", ttl=30)
def pay(request: HttpRequest, order_id: int) -> HttpResponse:
    return charge(order_id)


@lock_view("pay:{order_id}", ttl=30, wait=30)
def pay_in_turn(request: HttpRequest, order_id: int) -> HttpResponse:
    return charge(order_id)


def pay_and_hang(request: HttpRequest, order_id: int) -> HttpResponse:
    """Stay before the charge while the key "hang" is in the cache."""
    if Job.objects.get(pk=order_id).status != "paid":
        cache.set("charging", os.getpid())
        while cache.get("hang"):
            time.sleep(0.02)
    return charge(order_id)


@lock_view("pay:{order_id}", ttl=3600)
def pay_for_long(request: HttpRequest, order_id: int) -> HttpResponse:
    return pay_and_hang(request, order_id)


@lock_view("pay:{order_id}", ttl=6)
def pay_for_short(request: HttpRequest, order_id: int) -> HttpResponse:
    return pay_and_hang(request, order_id)


urlpatterns = [
    path("pay/<int:order_id>/", pay),
    path("pay-in-turn/<int:order_id>/", pay_in_turn),
    path("pay-for-long/<int:order_id>/", pay_for_long),
    path("pay-for-short/<int:order_id>/", pay_for_short),
    path("pay-unlocked/<int:order_id>/", pay_unlocked),
]
