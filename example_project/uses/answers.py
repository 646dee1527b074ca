"""One run for all who ask: five people want the same figures, which take a second to compute."""

from __future__ import annotations

import time
from typing import Any

from celery import shared_task
from django.db.models import F

from django_tasklock.celery import LockedTask
from example_project.processes import ending, start_worker, wait_for_workers
from example_project.uses.crew import Crew, Shown, in_threads, times
from example_project.uses.models import Product


@shared_task(base=LockedTask, acks_late=True, on_conflict="join")
def figures(year: int) -> dict[str, Any]:
    """The figures of a year."""
    Product.objects.filter(title=COUNTER).update(stock=F("stock") + 1)
    time.sleep(1)  # to compute them
    return {"year": year, "computed": time.time()}


# ------------------------------------------------------------------------------ shown

COUNTER, YEAR, ASK = "figures", 2026, 5
ANSWER_SECONDS = 60.0


def show(crew: Crew) -> Shown:
    Product.objects.create(title=COUNTER, stock=0)
    worker = start_worker("answers@example", crew.logs, concurrency=ASK)
    with ending([worker]):
        wait_for_workers([worker])
        asked = in_threads(ASK, lambda _: figures.delay(YEAR))
        answers = [each.get(timeout=ANSWER_SECONDS, propagate=False) for each in asked]
    computed = Product.objects.get(title=COUNTER).stock
    same = sum(answer == answers[0] for answer in answers)
    shown = Shown(
        "one run for all",
        f"{ASK} ask for the figures of {YEAR}: computed {times(computed)}, {same} got the result",
    )
    if (computed, same) != (1, ASK):
        shown.problems.append(f"they were computed {times(computed)}, and not once: {answers}")
    return shown
