"""Several locks, all or none: two seats side by side, wanted in any order."""

from __future__ import annotations

import time
from collections.abc import Sequence

from django_tasklock import lock
from example_project.uses.crew import Crew, Shown, in_threads
from example_project.uses.models import Booking


def book(seats: Sequence[int], customer: str) -> bool:
    """Book all of the seats, or none if one of them is taken."""
    with lock([f"seat:{seat}" for seat in seats], ttl=30, wait=30):
        if Booking.objects.filter(seat__in=seats).exists():
            return False
        time.sleep(0.05)  # a payment
        Booking.objects.bulk_create(Booking(seat=seat, customer=customer) for seat in seats)
    return True


# ------------------------------------------------------------------------------ shown

SEATS = 8
"""in a circle"""


def want() -> int:
    """How many customers got their seats, of one for each pair of neighbours."""

    def customer(first: int) -> bool:
        pair = [first, (first + 1) % SEATS]
        # Every other one asks in the other order, which must not lead to a deadlock.
        return book(pair if first % 2 else pair[::-1], "somebody")

    return sum(in_threads(SEATS, customer))


def show(crew: Crew) -> Shown:
    Booking.objects.all().delete()
    asked, sold = SEATS * len(crew.members), sum(crew.at_once("seats", "want"))
    seats = list(Booking.objects.values_list("seat", flat=True))
    doubles = len(seats) - len(set(seats))
    shown = Shown(
        "several locks",
        f"{asked} customers want two of {SEATS} seats: {sold} got both, {doubles} booked twice",
    )
    if doubles:
        shown.problems.append(f"{doubles} seats were booked twice")
    if len(seats) != 2 * sold or not sold:
        shown.problems.append(f"{len(seats)} seats are booked, by {sold} customers")
    return shown
