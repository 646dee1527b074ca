"""What uniqueness in the queue promises, in every state that four calls can bring it to."""

from __future__ import annotations

import pytest

from tests.model.reservations import (
    DOUBLE,
    LOST_CALL,
    NO_MESSAGE,
    NO_TTL,
    Calls,
    JobState,
    broken,
    is_over,
)
from tests.model.search import Explored, Violation, explore


class LeavesItWhenItCannotSend(Calls):
    def after_failure(self, state: JobState, at: int) -> JobState:
        return state


class ReservesWithoutTtl(Calls):
    def reserved(self, state: JobState, at: int) -> JobState:
        return state._replace(reserved=at, ttl=False)


class EndsWithoutCompare(Calls):
    def can_end(self, state: JobState, at: int) -> bool:
        return True


class ReservesOverAnother(Calls):
    def can_reserve(self, state: JobState, at: int) -> bool:
        return True


class EndsAfterReading(Calls):
    ends_before_reading = False


def visited(calls: Calls, deaths: int = 1, losses: int = 1) -> Explored[JobState]:
    start = JobState(("",) * 4, deaths=deaths, losses=losses)
    found = explore(start, calls.moves, broken)
    found.check_end(is_over, without=frozenset({"fault"}), name="everything comes to an end")
    return found


def test_every_reservation_has_a_message_and_every_refused_call_a_run() -> None:
    print(f"{len(visited(Calls()).states)} states")
    visited(Calls(), 0, 0)


@pytest.mark.parametrize(
    ("calls", "name"),
    [
        (LeavesItWhenItCannotSend, NO_MESSAGE),
        (ReservesWithoutTtl, NO_TTL),
        (EndsWithoutCompare, DOUBLE),
        (ReservesOverAnother, DOUBLE),
        (EndsAfterReading, LOST_CALL),
    ],
)
def test_a_planted_fault_is_found(calls: type[Calls], name: str) -> None:
    with pytest.raises(Violation) as caught:
        visited(calls())
    assert caught.value.broken == name
