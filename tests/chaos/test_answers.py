"""Histories with answers that cannot be true, and with something left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.bounds import LEFT
from tests.chaos.history import CONDUCTOR, Event, History, read
from tests.chaos.told import NAME, A, B, C, Told


class TestAnswers:
    def hold(self, told: Told) -> None:
        told.ask(1, A)
        told.grant(1.1, A, 1)
        told.hold(A, 1.2, 1.9)

    def look(self, told: Told, at: float, **says: Any) -> None:
        told.tell(at, "looking", C, verb=says["verb"])
        told.tell(at + 0.001, "looked", C, **says)

    @pytest.mark.parametrize(
        "says", [{"verb": "get", "token": None}, {"verb": "is_locked", "said": False}]
    )
    def test_said_to_be_free(self, told: Told, says: dict[str, Any]) -> None:
        self.hold(told)
        self.look(told, 1.5, **says)
        told.release(2, A)
        assert told.rules() == {"said to be free"}

    def test_said_to_be_held_by_whom_it_is(self, told: Told) -> None:
        self.hold(told)
        self.look(told, 1.5, verb="get", token=f"token-{A}-1")
        self.look(told, 1.6, verb="list", tokens={NAME: f"token-{A}-1"})
        self.look(told, 1.7, verb="count", number=1)
        self.look(told, 1.8, verb="is_locked", said=True)
        told.release(2, A)
        assert told.rules() == set()

    def test_said_to_be_held_by_one_that_was_released(self, told: Told) -> None:
        self.hold(told)
        told.release(2, A)
        self.look(told, 3, verb="get", token=f"token-{A}-1")
        assert told.rules() == {"foreign answer"}

    def test_another_locks_lease(self, told: Told) -> None:
        self.hold(told)
        self.look(told, 1.5, verb="list", tokens={"seat:2": f"token-{A}-1"})
        told.release(2, A)
        assert told.rules() == {"foreign answer"}

    def test_a_lease_that_was_cleared_and_released(self, told: Told) -> None:
        self.hold(told)
        told.clear(1.95, C, of=A, fence=1)
        told.release(2, A)
        assert told.rules() == {"cleared but released"}

    def test_lost_before_its_time(self, told: Told) -> None:
        self.hold(told)
        told.tell(2, "lost", A)
        assert told.rules() == {"lost early"}

    def test_released_with_false_before_its_time(self, told: Told) -> None:
        self.hold(told)
        told.release(2, A, said=False)
        assert told.rules() == {"lost early"}

    def renew(self, told: Told) -> None:
        told.ask(1, A, ttl=2.0, renew=True)
        told.grant(1.1, A, 1, end=3)
        told.hold(A, 2, end=3)
        told.tell(3.1, "lost", A)

    def test_a_renewed_lease_that_ran_out(self, told: Told) -> None:
        self.renew(told)
        assert told.rules() == {"lost early"}

    def test_a_renewed_lease_that_ran_out_in_an_outage(self, told: Told) -> None:
        self.renew(told)
        told.fault("redis stopped", 1.5, 3.5)
        assert told.rules() == set()

    def test_unavailable(self, told: Told) -> None:
        told.ask(1, A)
        told.tell(1.1, "unavailable", A, verb="acquire", reason="no connection", where="x")
        assert told.rules() == {"unavailable without a cause"}

    def test_unavailable_in_an_outage(self, told: Told) -> None:
        told.fault("redis stopped", 0.5, 1.05)
        told.ask(1, A)
        told.tell(1.1, "unavailable", A, verb="acquire", reason="no answer", where="x")
        assert told.rules() == set()

    def test_another_exception(self, told: Told) -> None:
        told.ask(1, A)
        told.tell(1.1, "raised", A, verb="acquire", error="TypeError: int", where="x")
        assert told.rules() == {"unexpected exception"}

    def test_a_process_that_ended_by_itself(self, told: Told) -> None:
        told.tell(1.1, "died", CONDUCTOR, "", whom="0.1", since=1, status=-11, log="")
        assert told.rules() == {"died"}


class TestLeftovers:
    @pytest.mark.parametrize("verb", ["release", "hold"])
    def test_a_lease_whose_end_was_interrupted(self, told: Told, verb: str) -> None:
        told.ask(1, A)
        told.grant(1.1, A, 1)
        told.tell(1.3, "interrupted", A, verb=verb, where="x")
        told.see(1.4, A)
        assert told.rules() == set()
        told.see(1.5 + LEFT, A)
        assert told.rules() == {"left behind"}

    def test_a_lease_whose_grant_was_interrupted(self, told: Told) -> None:
        told.ask(1, A)
        told.tell(1.3, "interrupted", A, verb="acquire", where="x")
        told.see(1.4, A)
        assert told.rules() == set()
        told.see(1.5 + LEFT, A)
        assert told.rules() == {"left behind"}

    def test_not_given_back_in_an_outage(self, told: Told) -> None:
        told.ask(1, A)
        told.tell(1.3, "interrupted", A, verb="acquire", where="x")
        told.fault("cut", 1.35, 1.4, "0.1")
        told.see(1.5 + LEFT, A)
        assert told.rules() == set()

    def test_a_waiter_that_has_given_up(self, told: Told) -> None:
        told.ask(1, A, wait=1.0)
        told.see(1.5, C, A)
        told.tell(2, "refused", A)
        told.see(2.1 + LEFT, C, A)
        assert told.rules() == {"left behind"}

    def test_a_waiter_that_was_interrupted_is_passed_over(self, told: Told) -> None:
        told.ask(1, A, wait=5.0)
        told.tell(2, "interrupted", A, verb="acquire", where="x")
        told.see(2.1 + LEFT, C, A)
        assert told.rules() == set()

    def test_a_lease_that_was_released(self, told: Told) -> None:
        told.ask(1, A)
        told.grant(1.1, A, 1)
        told.release(1.3, A)
        told.see(1.4, A)
        assert told.rules() == {"left behind"}

    def test_something_left_in_redis(self, told: Told) -> None:
        told.tell(9, "left", CONDUCTOR, "", what="the key 'x'")
        assert told.rules() == {"left in Redis"}

    def test_at_rest(self, told: Told) -> None:
        told.tell(1, "began", "0.1", "", threads=1, files=5, pid=1)
        told.tell(9, "rested", "0.1", "", threads=2, files=12, spare=[28, 32], pid=1)
        told.tell(9.1, "connections", CONDUCTOR, "", whom="0.1", number=6)
        assert told.rules() == set()

    @pytest.mark.parametrize(
        "wrong", [{"threads": 9}, {"files": 99}, {"spare": [27, 32]}], ids=["t", "f", "c"]
    )
    def test_not_at_rest(self, told: Told, wrong: dict[str, Any]) -> None:
        told.tell(1, "began", "0.1", "", threads=1, files=5, pid=1)
        says = {"threads": 2, "files": 12, "spare": [28, 32], "pid": 1} | wrong
        told.tell(9, "rested", "0.1", "", **says)
        assert told.rules() == {"not at rest"}

    def test_too_many_connections_and_a_thread_that_never_returns(self, told: Told) -> None:
        told.tell(9.1, "connections", CONDUCTOR, "", whom="0.1", number=40)
        told.tell(9.2, "stuck", CONDUCTOR, "", whom="1.1", threads="File x")
        assert told.rules() == {"not at rest"}


def test_events_are_read_as_they_were_written(tmp_path: Path) -> None:
    late, early = History(tmp_path, "0.1"), History(tmp_path, "1.1")
    late.write("held", at=2.5, call=A, name=NAME, end=3.25)
    early.write("lost", at=1.5, call=B, name=NAME)
    assert read(tmp_path) == [
        Event(1.5, "lost", "1.1", B, NAME, {}),
        Event(2.5, "held", "0.1", A, NAME, {"end": 3.25}),
    ]
    assert str(read(tmp_path)[1]) == f"2.500000 {A} held {NAME} end=3.250000"
