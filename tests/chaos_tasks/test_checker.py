"""Each rule finds what it is for, and lets the nearest thing pass that may happen."""

from __future__ import annotations

import pytest

from tests.chaos_tasks.written_history import A, B, WrittenHistory


def test_a_run_a_duplicate_and_a_redelivery_after_a_death(written: WrittenHistory) -> None:
    written.send(0, A)
    written.send(0.1, B, twice=True)
    written.die(1, A, 11, 1001)
    written.begin(1.5, B, 12)
    written.end(1.6, B, 12, skipped="already_processing", holder=A)
    written.fault(2, "child killed", 11)
    written.clear(2.1)
    written.run(3, A, 13, 1002, before="running", again=True)
    assert written.rules() == set()


class TestRows:
    def test_done_twice(self, written: WrittenHistory) -> None:
        written.send(0, A)
        written.run(1, A, 11, 1001)
        written.run(5, A, 12, 1002, before="new", again=True)
        assert written.rules() == {"done twice"}

    def test_changed_after_the_end(self, written: WrittenHistory) -> None:
        written.send(0, A)
        written.run(1, A, 11, 1001)
        written.change(5, "done", "failed", 1001)
        written.fail(5.1, A, 11, "Broken")
        assert written.rules() == {"changed after the end", "unexpected failure"}

    def test_finished_by_another(self, written: WrittenHistory) -> None:
        """The first body comes to its end when the second one has the row."""
        written.send(0, A)
        written.die(1, A, 11, 1001)
        written.fault(1.5, "child stopped", 11)
        written.die(10, A, 12, 1002, before="running", again=True)
        written.over(10.5, A, 11, 1001, held=False)
        written.change(10.6, "running", "done", 1002)
        assert written.rules() == {"finished by another"}

    def test_one_that_was_held_up_ends_while_another_has_the_row(
        self, written: WrittenHistory
    ) -> None:
        written.send(0, A)
        written.die(1, A, 11, 1001)
        written.fault(1.5, "child stopped", 11)
        written.die(10, A, 12, 1002, before="running", again=True)
        written.over(10.5, A, 11, 1001, held=False)
        written.over(10.8, A, 12, 1002)
        written.change(10.9, "running", "done", 1002)
        assert written.rules() == set()

    def test_falling_fences(self, written: WrittenHistory) -> None:
        written.send(0, A)
        written.die(1, A, 11, 1002)
        written.run(3, A, 13, 1001, before="running", again=True)
        assert written.rules() == {"falling fences"}

    def test_stuck(self, written: WrittenHistory) -> None:
        written.send(0, A)
        written.die(1, A, 11, 1001)
        written.fault(1.5, "child killed", 11)
        written.clear(1.6)
        assert written.rules() == {"stuck"}

    def test_lost(self, written: WrittenHistory) -> None:
        written.send(0, A)
        assert written.rules() == {"lost"}

    def test_one_that_was_not_sent_is_not_missed(self, written: WrittenHistory) -> None:
        written.tell(0, "duplicate", 0, A, of=B)
        assert written.rules() == set()

    def test_done_though_its_bodies_fail(self, written: WrittenHistory) -> None:
        written.send(0, A, end="raise")
        written.run(1, A, 11, 1001)
        assert written.rules() == {"done though no body returned"}

    @pytest.mark.parametrize("told", [True, False])
    def test_a_failure_is_told(self, written: WrittenHistory, told: bool) -> None:
        written.send(0, A, end="raise")
        written.die(1, A, 11, 1001)
        if told:
            written.over(1.5, A, 11, 1001, "broke")
            written.fail(1.8, A, 11, "Broken")
        written.change(1.6, "running", "failed", 1001)
        written.end(2, A, 11)
        assert written.rules() == (set() if told else {"failed, and nobody knows why"})

    @pytest.mark.parametrize("error", ["OperationalError", "StatusConflict", "Broken", "Reject"])
    def test_a_failure_that_nobody_asked_for(self, written: WrittenHistory, error: str) -> None:
        written.send(0, A)
        written.die(1, A, 11, 1001)
        written.over(1.5, A, 11, 1001, "broke")
        written.change(1.6, "running", "failed", 1001)
        written.fail(1.8, A, 11, error)
        written.end(2, A, 11)
        assert written.rules() == {"unexpected failure"}

    def test_a_lease_that_the_store_forgot(self, written: WrittenHistory) -> None:
        written.send(0, A)
        written.die(1, A, 11, 1001)
        written.fault(1.5, "locks emptied")
        written.die(1.6, A, 12, 1002, before="running", again=True)
        written.over(2, A, 11, 1001)
        written.fail(2.1, A, 11, "StatusConflict")
        written.over(2.4, A, 12, 1002)
        written.change(2.5, "running", "done", 1002)
        assert written.rules() == set()

    def test_a_retry_of_celery_that_cannot_be_sent(self, written: WrittenHistory) -> None:
        written.send(0, A)
        written.die(1, A, 11, 1001)
        written.over(1.5, A, 11, 1001, "broke")
        written.fault(1.55, "broker restarted")
        written.change(1.6, "running", "failed", 1001)
        written.fail(1.8, A, 11, "Reject")
        written.end(2, A, 11)
        assert written.rules() == set()


class TestAttempts:
    @pytest.mark.parametrize("deaths", [4, 5])
    def test_given_up_early(self, written: WrittenHistory, deaths: int) -> None:
        written.send(0, A)
        for number in range(deaths):
            before = "running" if number else "new"
            written.die(10 * number + 1, A, 20 + number, 1001 + number, before=before)
        self.give_up(written)
        assert written.rules() == (set() if deaths == 5 else {"given up early"})

    @pytest.mark.parametrize("held", [True, False])
    def test_an_orderly_end_is_no_death_and_a_lost_lease_is_like_one(
        self, written: WrittenHistory, held: bool
    ) -> None:
        written.send(0, A)
        written.die(1, A, 11, 1001, task="once")
        written.over(2, A, 11, 1001, "broke", held=held)
        written.end(2.1, A, 11)
        self.give_up(written, task="once")
        assert written.rules() == ({"given up early"} if held else set())

    @pytest.mark.parametrize("emptied", [True, False])
    def test_too_many_runs(self, written: WrittenHistory, emptied: bool) -> None:
        """With its data the store loses its counts."""
        written.send(0, A)
        written.die(1, A, 11, 1001, task="once")
        if emptied:
            written.fault(3, "locks emptied")
        written.run(5, A, 12, 1002, before="running", task="once", again=True)
        assert written.rules() == (set() if emptied else {"too many runs"})

    def give_up(self, written: WrittenHistory, task: str = "skip") -> None:
        written.begin(60, A, 31, task=task, again=True)
        written.change(60.1, "running", "failed", 2000)
        written.fail(60.2, A, 31, "TooManyAttempts")
        written.end(60.3, A, 31)


class TestTwoAtOnce:
    def play(self, written: WrittenHistory, *, held: bool) -> None:
        written.send(0, A)
        written.send(0, B, twice=True)
        written.die(1, A, 11, 1001)
        written.die(2, B, 12, 1002, before="running")
        written.over(2.5, A, 11, 1001, held=held)
        written.end(2.6, A, 11)
        written.over(3, B, 12, 1002)
        written.change(3.1, "running", "done", 1002)
        written.end(3.2, B, 12)

    def test_both_hold(self, written: WrittenHistory) -> None:
        self.play(written, held=True)
        assert written.rules() == {"two at once"}

    def test_the_first_has_lost_its_lease(self, written: WrittenHistory) -> None:
        self.play(written, held=False)
        assert written.rules() == set()

    @pytest.mark.parametrize("held", [True, False])
    def test_the_older_one_begins_later(self, written: WrittenHistory, held: bool) -> None:
        """It was stopped in its claim."""
        written.send(0, A)
        written.begin(1, A, 11)
        written.change(1.1, "new", "running", 1001)
        written.fault(1.2, "child stopped before its claim", 11)
        written.die(8, A, 12, 1002, before="running", again=True)
        written.start(8.3, A, 11, 1001)
        written.over(8.5, A, 12, 1002)
        written.change(8.6, "running", "done", 1002)
        written.over(8.7, A, 11, 1001, "broke", held=held)
        assert written.rules() == ({"two at once"} if held else set())

    def test_the_first_cannot_know_yet_that_it_has(self, written: WrittenHistory) -> None:
        written.fault(1.9, "locks emptied")
        self.play(written, held=True)
        assert written.rules() == set()


class TestSkips:
    @pytest.mark.parametrize("holder", [A, "unknown", ""])
    def test_for_nobody_else(self, written: WrittenHistory, holder: str) -> None:
        written.send(0, A)
        written.begin(1, A, 11)
        written.end(1.1, A, 11, skipped="already_processing", holder=holder)
        written.run(5, A, 12, 1001, again=True)
        assert written.rules() == {"skipped wrongly"}

    def test_for_one_that_begins_later(self, written: WrittenHistory) -> None:
        written.send(0, A)
        written.send(0, B, twice=True)
        written.begin(1, B, 12)
        written.end(1.1, B, 12, skipped="already_processing", holder=A)
        written.run(5, A, 11, 1001)
        assert written.rules() == {"skipped wrongly"}

    def test_for_another_reason(self, written: WrittenHistory) -> None:
        written.send(0, A)
        written.begin(0.5, A, 12)
        written.end(0.6, A, 12, skipped="cooling_down", holder=B)
        written.run(5, A, 11, 1001, again=True)
        assert written.rules() == {"skipped wrongly"}

    @pytest.mark.parametrize("at", [1, 5])
    def test_for_a_row_that_has_work(self, written: WrittenHistory, at: float) -> None:
        """In the moment of the claim it is not known which came first."""
        written.send(0, A)
        written.send(0, B, twice=True)
        written.begin(at, B, 12)
        written.end(at + 0.1, B, 12, skipped="invalid_state")
        written.run(5, A, 11, 1001)
        assert written.rules() == ({"skipped wrongly"} if at == 1 else set())

    def test_for_a_row_that_is_done(self, written: WrittenHistory) -> None:
        written.send(0, A)
        written.send(0, B, twice=True)
        written.run(1, A, 11, 1001)
        written.begin(20, B, 12)
        written.end(20.1, B, 12, skipped="invalid_state")
        assert written.rules() == set()


class TestTheEnd:
    @pytest.mark.parametrize("what", ["locks", "queues", "reservations", "messages"])
    def test_something_is_left(self, written: WrittenHistory, what: str) -> None:
        written.rest(**{what: ["job:1"]})
        assert written.rules() == {f"{what} left"}

    def test_the_run_was_broken_off(self, written: WrittenHistory) -> None:
        written.send(0, A)
        written.run(1, A, 11, 1001)
        written.rest()
        written.events = [event for event in written.events if event.kind != "at rest"]
        written.tell(90, "hiccup", since=80.0)
        from tests.chaos_tasks.checker import check

        violations, _ = check(written.events)
        assert "never at rest" in {violation.rule for violation in violations}

    @pytest.mark.parametrize("kind", ["worker ended", "worker stuck"])
    def test_a_worker_ends_by_itself_or_does_not(self, written: WrittenHistory, kind: str) -> None:
        written.tell(50, kind, whom=11, log="Traceback")
        assert written.rules() == {kind}

    @pytest.mark.parametrize("where", ["asynpool.py", "django_tasklock/celery/children.py"])
    @pytest.mark.parametrize("fault", ["cold shutdown", "warm shutdown"])
    def test_a_cold_shutdown_hangs_in_celery(
        self, written: WrittenHistory, where: str, fault: str
    ) -> None:
        written.fault(5, fault, whom=11)
        stack = [where, "worker.py in on_cold_shutdown", "django_tasklock/celery/request.py"]
        log = "\n".join(["Thread 0x1", "Current thread 0x2:", *stack])
        written.tell(90, "worker stuck", whom=11, log=log)
        ours = "django_tasklock" in where or fault == "warm shutdown"
        assert written.rules() == ({"worker stuck"} if ours else set())

    def test_a_worker_ends_because_its_broker_did(self, written: WrittenHistory) -> None:
        written.fault(49, "broker restarted")
        written.tell(50, "worker ended", whom=11, log="Traceback")
        assert written.rules() == set()
