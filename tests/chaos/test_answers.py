"""Histories with answers that cannot be true, and with something left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.bounds import LEFT_SECONDS
from tests.chaos.history import CONDUCTOR, Event, History, read
from tests.chaos.written_history import NAME, A, B, C, WrittenHistory


class TestAnswers:
    def hold(self, written: WrittenHistory) -> None:
        written.ask(1, A)
        written.grant(1.1, A, 1)
        written.hold(A, 1.2, 1.9)

    def look(self, written: WrittenHistory, at: float, **says: Any) -> None:
        written.tell(at, "looking", C, verb=says["verb"])
        written.tell(at + 0.001, "looked", C, **says)

    @pytest.mark.parametrize(
        "says", [{"verb": "get", "token": None}, {"verb": "is_locked", "said": False}]
    )
    def test_said_to_be_free(self, written: WrittenHistory, says: dict[str, Any]) -> None:
        self.hold(written)
        self.look(written, 1.5, **says)
        written.release(2, A)
        assert written.rules() == {"said to be free"}

    def test_said_to_be_held_by_whom_it_is(self, written: WrittenHistory) -> None:
        self.hold(written)
        self.look(written, 1.5, verb="get", token=f"token-{A}-1")
        self.look(written, 1.6, verb="list", tokens={NAME: f"token-{A}-1"})
        self.look(written, 1.7, verb="count", number=1)
        self.look(written, 1.8, verb="is_locked", said=True)
        written.release(2, A)
        assert written.rules() == set()

    def test_said_to_be_held_by_one_that_was_released(self, written: WrittenHistory) -> None:
        self.hold(written)
        written.release(2, A)
        self.look(written, 3, verb="get", token=f"token-{A}-1")
        assert written.rules() == {"foreign answer"}

    def fail_over(self, written: WrittenHistory, *, planned: bool) -> None:
        written.fault("failed over", 1.95, 2.5)
        if not planned:
            written.fault("emptied", 1.95, 2.5)

    @pytest.mark.parametrize(("planned", "rules"), [(True, {"foreign answer"}), (False, set())])
    def test_a_release_that_the_replica_does_not_have(
        self, written: WrittenHistory, planned: bool, rules: set[str]
    ) -> None:
        self.hold(written)
        written.release(2, A)
        self.fail_over(written, planned=planned)
        self.look(written, 3, verb="get", token=f"token-{A}-1")
        assert written.rules() == rules

    def test_a_release_long_before_a_failover(self, written: WrittenHistory) -> None:
        self.hold(written)
        written.release(1.4, A)
        self.fail_over(written, planned=False)
        self.look(written, 3, verb="get", token=f"token-{A}-1")
        assert written.rules() == {"foreign answer"}

    @pytest.mark.parametrize(
        ("planned", "rules"), [(True, {"cleared but extended"}), (False, set())]
    )
    def test_a_clear_that_the_replica_does_not_have(
        self, written: WrittenHistory, planned: bool, rules: set[str]
    ) -> None:
        self.hold(written)
        written.clear(1.93, C, of=A, fence=1)
        self.fail_over(written, planned=planned)
        written.tell(2.6, "extending", A, ttl=3.0)
        written.tell(2.61, "extended", A, said=True)
        written.release(2.7, A)
        assert written.rules() - {"cleared but released"} == rules

    def test_another_locks_lease(self, written: WrittenHistory) -> None:
        self.hold(written)
        self.look(written, 1.5, verb="list", tokens={"seat:2": f"token-{A}-1"})
        written.release(2, A)
        assert written.rules() == {"foreign answer"}

    def test_a_lease_that_was_cleared_and_released(self, written: WrittenHistory) -> None:
        self.hold(written)
        written.clear(1.95, C, of=A, fence=1)
        written.release(2, A)
        assert written.rules() == {"cleared but released"}

    def test_a_lease_that_was_cleared_and_extended(self, written: WrittenHistory) -> None:
        self.hold(written)
        written.clear(1.5, C, of=A, fence=1)
        written.tell(1.6, "extending", A, ttl=3.0)
        written.tell(1.61, "extended", A, said=True)
        written.release(2, A, said=False)
        assert written.rules() == {"cleared but extended"}

    def test_an_extension_that_came_before_the_clear(self, written: WrittenHistory) -> None:
        self.hold(written)
        written.tell(1.49, "extending", A, ttl=3.0)
        written.clear(1.5, C, of=A, fence=1)
        written.tell(1.61, "extended", A, said=True)
        written.hold(A, 1.7, end=4.49)
        written.release(2, A, said=False)
        assert written.rules() == set()

    def test_a_lease_that_was_cleared_and_renewed(self, written: WrittenHistory) -> None:
        written.ask(1, A, ttl=3.0, renew=True)
        written.grant(1.1, A, 1, end=4)
        written.clear(1.5, C, of=A, fence=1)
        written.hold(A, 2.1, end=5.0)
        written.release(2.2, A, said=False)
        assert written.rules() == {"cleared but extended"}

    def test_a_lease_that_was_cleared_after_its_renewal(self, written: WrittenHistory) -> None:
        written.ask(1, A, ttl=3.0, renew=True)
        written.grant(1.1, A, 1, end=4)
        written.clear(2.5, C, of=A, fence=1)
        written.hold(A, 2.6, end=5.0)
        written.release(2.7, A, said=False)
        assert written.rules() == set()

    def test_lost_before_its_time(self, written: WrittenHistory) -> None:
        self.hold(written)
        written.tell(2, "lost", A)
        assert written.rules() == {"lost early"}

    def test_released_with_false_before_its_time(self, written: WrittenHistory) -> None:
        self.hold(written)
        written.release(2, A, said=False)
        assert written.rules() == {"lost early"}

    def renew(self, written: WrittenHistory) -> None:
        written.ask(1, A, ttl=2.0, renew=True)
        written.grant(1.1, A, 1, end=3)
        written.hold(A, 2, end=3)
        written.tell(3.1, "lost", A)

    def test_a_renewed_lease_that_ran_out(self, written: WrittenHistory) -> None:
        self.renew(written)
        assert written.rules() == {"lost early"}

    def test_a_renewed_lease_that_ran_out_in_an_outage(self, written: WrittenHistory) -> None:
        self.renew(written)
        written.fault("redis stopped", 1.5, 3.5)
        assert written.rules() == set()

    def renew_through(self, written: WrittenHistory, fault: str, seconds: float) -> None:
        written.ask(1, A, ttl=6.0, renew=True)
        written.grant(1.1, A, 1, end=7)
        written.fault(fault, 2.9, 2.9 + seconds, "0.1")
        written.hold(A, 6.9, end=7)
        written.tell(7.1, "lost", A)

    def test_a_renewed_lease_that_one_cut_ended(self, written: WrittenHistory) -> None:
        self.renew_through(written, "cut", 0.01)
        assert written.rules() == {"lost early"}

    def test_a_renewed_lease_that_a_long_pause_ended(self, written: WrittenHistory) -> None:
        self.renew_through(written, "proxy paused", 1.6)
        assert written.rules() == set()

    def test_unavailable(self, written: WrittenHistory) -> None:
        written.ask(1, A)
        written.tell(1.1, "unavailable", A, verb="acquire", reason="no connection", where="x")
        assert written.rules() == {"unavailable without a cause"}

    def test_unavailable_in_an_outage(self, written: WrittenHistory) -> None:
        written.fault("redis stopped", 0.5, 1.05)
        written.ask(1, A)
        written.tell(1.1, "unavailable", A, verb="acquire", reason="no answer", where="x")
        assert written.rules() == set()

    @pytest.mark.parametrize(
        "fault", ["read only", "out of memory", "redis restarted", "failed over"]
    )
    def test_unavailable_while_the_server_takes_no_writes(
        self, written: WrittenHistory, fault: str
    ) -> None:
        written.fault(fault, 0.5, 1.05)
        written.ask(1, A)
        written.tell(1.1, "unavailable", A, verb="acquire", reason="refused", where="x")
        assert written.rules() == set()

    def test_another_exception(self, written: WrittenHistory) -> None:
        written.ask(1, A)
        written.tell(1.1, "raised", A, verb="acquire", error="TypeError: int", where="x")
        assert written.rules() == {"unexpected exception"}

    def test_a_process_that_ended_by_itself(self, written: WrittenHistory) -> None:
        written.tell(1.1, "died", CONDUCTOR, "", whom="0.1", since=1, status=-11, log="")
        assert written.rules() == {"died"}


class TestLeftovers:
    @pytest.mark.parametrize("verb", ["release", "hold"])
    def test_a_lease_whose_end_was_interrupted(self, written: WrittenHistory, verb: str) -> None:
        written.ask(1, A)
        written.grant(1.1, A, 1)
        written.tell(1.3, "interrupted", A, verb=verb, where="x")
        written.see(1.4, A)
        assert written.rules() == set()
        written.see(1.5 + LEFT_SECONDS, A)
        assert written.rules() == {"left behind"}

    def test_a_lease_whose_grant_was_interrupted(self, written: WrittenHistory) -> None:
        written.ask(1, A)
        written.tell(1.3, "interrupted", A, verb="acquire", where="x")
        written.see(1.4, A)
        assert written.rules() == set()
        written.see(1.5 + LEFT_SECONDS, A)
        assert written.rules() == {"left behind"}

    def test_not_given_back_in_an_outage(self, written: WrittenHistory) -> None:
        written.ask(1, A)
        written.tell(1.3, "interrupted", A, verb="acquire", where="x")
        written.fault("cut", 1.35, 1.4, "0.1")
        written.see(1.5 + LEFT_SECONDS, A)
        assert written.rules() == set()

    def test_a_waiter_that_has_given_up(self, written: WrittenHistory) -> None:
        written.ask(1, A, wait=1.0)
        written.see(1.5, C, A)
        written.tell(2, "refused", A)
        written.see(2.1 + LEFT_SECONDS, C, A)
        assert written.rules() == {"left behind"}

    def test_a_waiter_that_was_interrupted_is_passed_over(self, written: WrittenHistory) -> None:
        written.ask(1, A, wait=5.0)
        written.tell(2, "interrupted", A, verb="acquire", where="x")
        written.see(2.1 + LEFT_SECONDS, C, A)
        assert written.rules() == set()

    def test_a_lease_that_was_released(self, written: WrittenHistory) -> None:
        written.ask(1, A)
        written.grant(1.1, A, 1)
        written.release(1.3, A)
        written.see(1.4, A)
        assert written.rules() == {"left behind"}

    def test_something_left_in_redis(self, written: WrittenHistory) -> None:
        written.tell(9, "left", CONDUCTOR, "", what="the key 'x'")
        assert written.rules() == {"left in Redis"}

    def test_at_rest(self, written: WrittenHistory) -> None:
        written.tell(1, "began", "0.1", "", threads=1, files=5, pid=1)
        written.tell(9, "rested", "0.1", "", threads=2, files=12, spare=[28, 32], pid=1)
        written.tell(9.1, "connections", CONDUCTOR, "", whom="0.1", number=6)
        assert written.rules() == set()

    @pytest.mark.parametrize(
        "wrong", [{"threads": 9}, {"files": 99}, {"spare": [27, 32]}], ids=["t", "f", "c"]
    )
    def test_not_at_rest(self, written: WrittenHistory, wrong: dict[str, Any]) -> None:
        written.tell(1, "began", "0.1", "", threads=1, files=5, pid=1)
        says = {"threads": 2, "files": 12, "spare": [28, 32], "pid": 1} | wrong
        written.tell(9, "rested", "0.1", "", **says)
        assert written.rules() == {"not at rest"}

    def test_too_many_connections_and_a_thread_that_never_returns(
        self, written: WrittenHistory
    ) -> None:
        written.tell(9.1, "connections", CONDUCTOR, "", whom="0.1", number=40)
        written.tell(9.2, "stuck", CONDUCTOR, "", whom="1.1", threads="File x")
        assert written.rules() == {"not at rest"}


def test_events_are_read_as_they_were_written(tmp_path: Path) -> None:
    late, early = History(tmp_path, "0.1"), History(tmp_path, "1.1")
    late.write("held", at=2.5, call=A, name=NAME, end=3.25)
    early.write("lost", at=1.5, call=B, name=NAME)
    assert read(tmp_path) == [
        Event(1.5, "lost", "1.1", B, NAME, {}),
        Event(2.5, "held", "0.1", A, NAME, {"end": 3.25}),
    ]
    assert str(read(tmp_path)[1]) == f"2.500000 {A} held {NAME} end=3.250000"


def test_an_event_in_whose_write_the_process_was_killed_is_left_out(tmp_path: Path) -> None:
    """As if it had been killed a moment before."""
    history = History(tmp_path, "0.1")
    history.write("lost", at=1.5, call=B, name=NAME)
    history.write("held", at=2.5, call=A, name=NAME, end=3.25)
    file = tmp_path / "0.1.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    assert read(tmp_path) == [Event(1.5, "lost", "0.1", B, NAME, {})]
