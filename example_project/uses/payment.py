"""A view that runs once at a time, under gunicorn with several processes."""

from __future__ import annotations

import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from http.client import HTTPConnection

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from django_tasklock.views import lock_view
from example_project.processes import START_SECONDS, NotReady, Process, ending
from example_project.servers import free_port
from example_project.uses.crew import Crew, Shown, times
from example_project.videos import ledger
from example_project.videos.models import Order, Payment
from example_project.videos.payments import charge_card


@csrf_exempt  # for an app, which has no cookie
@require_POST
@lock_view("pay:{order_id}", ttl=30, status=409)
def pay(_request: HttpRequest, order_id: int) -> JsonResponse:
    """Charge an order. A click meanwhile gets a 409, and one that comes later is told."""
    order = get_object_or_404(Order, pk=order_id)
    if order.status == Order.Status.PAID:
        return JsonResponse({"charged": False})
    reference = charge_card(order.amount, idempotency_key=f"order-{order.pk}")
    with transaction.atomic():
        Order.objects.filter(pk=order.pk).update(status=Order.Status.PAID)
        Payment.objects.create(order=order, reference=reference, amount=order.amount)
    return JsonResponse({"charged": True})


# ------------------------------------------------------------------------------ shown

PROCESSES = 4
CLICKS = 40


def show(crew: Crew) -> Shown:
    order = Order.objects.create(title="a film", amount=Decimal("4.90"))
    port = free_port()
    command = [
        *(sys.executable, "-m", "gunicorn", "example_project.wsgi", f"--bind=127.0.0.1:{port}"),
        *(f"--workers={PROCESSES}", f"--threads={CLICKS}", "--preload", "--no-control-socket"),
    ]
    site = Process("gunicorn", command, crew.logs / "gunicorn.log")
    with ending([site]):
        _wait_for(site, port)
        with ThreadPoolExecutor(CLICKS) as threads:
            answers = Counter(threads.map(lambda _: _click(port, order.pk), range(CLICKS)))
    charges = sum(line["key"] == f"order-{order.pk}" for line in ledger.read("charges"))
    shown = Shown(
        "gunicorn",
        f"{CLICKS} clicks on {PROCESSES} processes: charged {times(charges)}, "
        f"{answers[409]} refused with 409",
    )
    if charges != 1:
        shown.problems.append(f"the order was charged {times(charges)}")
    if answers.keys() - {200, 409}:
        shown.problems.append(f"the site answered {dict(answers)}")
    return shown


def _wait_for(site: Process, port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and site.exit_status is None:
        try:
            _click(port, 0)
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise NotReady(f"gunicorn did not come up. Its log ends:\n{site.last_lines()}")


def _click(port: int, order: int) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
    try:
        connection.request("POST", f"/orders/{order}/charge/")
        return connection.getresponse().status
    finally:
        connection.close()
