"""What ends before its body begins, and what a message carries: cases 45, 46, 49, 50 and 54."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from celery.exceptions import WorkerLostError
from celery.result import AsyncResult
from celery.utils import uuid

from django_tasklock import TooManyAttempts
from tests.hard_cases.conftest import MakeStage, on_both_brokers
from tests.hard_cases.early import Lethal
from tests.hard_cases.scripted import Boom
from tests.hard_cases.stage import Stage
from tests.hard_cases.workers import kill
from tests.nights import by_day
from tests.waiting import until

pytestmark = pytest.mark.slow
PICKLE = {"accept_content": ["json", "pickle"]}
AS_ROOT = {"C_FORCE_ROOT": "1"}
"""Celery unpickles nothing for root without it"""
ATTEMPTS = 3
"""lock_max_attempts of the tasks here"""
PLACES = ("before_start", "receiver", "mixin", "unpickling")


def call_lethal(stage: Stage, place: str, how: str) -> tuple[int, AsyncResult[Any]]:
    """Call a job that ends its child in this place, each time."""
    job, task_id = stage.job(), uuid()
    if place == "unpickling":
        script: Sequence[Any] = [Lethal(task_id, how)]
        return job, stage.call("hooked", job, script, task_id=task_id, serializer="pickle")
    plan = {"early": {"at": place, "how": how}}
    return job, stage.call("hooked", job, task_id=task_id, headers=plan)


def ends(stage: Stage, result: AsyncResult[Any]) -> int:
    """How often a message has ended before its body."""
    return len(stage.ledger.entries("early", task_id=result.id))


def next_call(stage: Stage, task: str, job: int, before: AsyncResult[Any]) -> AsyncResult[Any]:
    """The next call of the job that is no duplicate of the one before: within 10 s it is sent."""

    def sent() -> AsyncResult[Any] | None:
        result = stage.call(task, job)
        return None if result.id == before.id else result

    sent_one = until(sent, f"a call of {task} that is no duplicate", 10, every=0.1)
    assert sent_one is not None
    return sent_one


@on_both_brokers
@pytest.mark.parametrize(
    "fates",
    by_day(
        [*((place, "kill") for place in PLACES), ("before_start", "_exit"), ("mixin", "sys.exit")],
        [(place, how) for place in PLACES for how in ("_exit", "sys.exit")],
    ),
    ids=["kill", "exit"],
)
def test_45_a_message_that_kills_its_child_before_its_body_is_given_up(
    make_stage: MakeStage, broker: str, fates: list[tuple[str, str]]
) -> None:
    """After lock_max_attempts deaths: it fails, its row has failed, and the next call is sent."""
    stage = make_stage(broker)
    stage.worker(concurrency=3, conf=PICKLE, environment=AS_ROOT)
    lethal = {f"{how} in {place}": call_lethal(stage, place, how) for place, how in fates}
    for _, result in lethal.values():
        until(
            lambda result=result: result.ready() or ends(stage, result) > ATTEMPTS,  # type: ignore[misc]
            "it has ended, or has died too often",
        )
    deaths = {fate: ends(stage, result) for fate, (_, result) in lethal.items()}
    assert deaths == dict.fromkeys(lethal, ATTEMPTS)
    for job, result in lethal.values():
        with pytest.raises(TooManyAttempts):
            result.get(timeout=60)
        until(lambda job=job: stage.row(job)[0] == "failed", "its row has failed", 10)  # type: ignore[misc]
        next_call(stage, "hooked", job, result)
    stage.assert_settled()


@pytest.mark.parametrize("task", by_day("hooked", "hooked_early"))
def test_46_what_fails_before_its_body_frees_what_it_has_reserved(stage: Stage, task: str) -> None:
    """An error, Ignore or Reject, in ``before_start`` or a mixin: the next call is sent, and
    runs."""
    stage.worker(concurrency=2)
    failed = {}
    for place in ("before_start", "mixin"):
        for how in ("raise", "ignore", "reject"):
            plan = {"early": {"at": place, "how": how}}
            failed[job] = stage.call(task, job := stage.job(), headers=plan)
    for job, result in failed.items():
        until(lambda result=result: ends(stage, result), "it has failed")  # type: ignore[misc]
        assert next_call(stage, task, job, result).get(timeout=60) == f"done:{job}"
        assert ends(stage, result) == len(stage.ledger.runs(job=job)) == 1
    stage.assert_settled()


def test_46_a_child_killed_while_it_waits_for_its_lock_frees_what_its_message_had_reserved(
    stage: Stage,
) -> None:
    """Without acks_late its message is gone: the next call is sent while the lock is still held."""
    stage.worker(concurrency=2)
    with stage.busy("skip") as (job, holder, _):
        waits = stage.call("hooked_early", job)
        stage.deliveries(waits.id, 1, "prerun")
        kill(stage.ledger.entries("prerun", task_id=waits.id)[0].pid)
        again = next_call(stage, "hooked_early", job, waits)
    assert holder.get(timeout=60) == again.get(timeout=60) == f"done:{job}"
    with pytest.raises(WorkerLostError):
        waits.get(timeout=60)
    stage.assert_settled()


@pytest.mark.parametrize(
    ("task", "how"),
    by_day(("hooked_coalesced", "raise"), ("hooked_coalesced_early", "kill")),
)
def test_46_after_a_follow_up_that_ended_before_its_body_the_next_refused_call_is_one(
    stage: Stage, task: str, how: str
) -> None:
    """Coalesced calls rely on the follow-up: who comes after its end is not told that it waits."""
    stage.worker(concurrency=2)
    with stage.busy(task) as (job, holder, _):
        plan = {"early": {"at": "before_start", "how": how, "from": 2}}
        follow_up = stage.call(task, job, headers=plan)
        with pytest.raises(Boom if how == "raise" else WorkerLostError):
            follow_up.get(timeout=60)
        last = stage.call(task, job)
        stage.deliveries(last.id, 1, "prerun")
    assert holder.get(timeout=60) == last.get(timeout=60) == f"done:{job}"
    stage.assert_settled()


def test_46_the_row_of_a_killed_child_has_failed_where_its_message_does_not_come_again(
    stage: Stage,
) -> None:
    """Without acks_late: Celery has stored the failure."""
    stage.worker()
    job, result, start = stage.begin("guarded_early", {"seconds": 60})
    kill(start.pid)
    with pytest.raises(WorkerLostError):
        result.get(timeout=60)
    until(lambda: stage.row(job)[0] == "failed", "its row has failed", 10)
    stage.assert_settled()
    assert len(stage.ledger.runs(job=job)) == 1


@pytest.mark.parametrize("task", ["retry", "early_retry"])
def test_49_a_call_with_a_serializer_of_its_own_waits_and_runs(stage: Stage, task: str) -> None:
    """It is sent again as it came, with and without acks_late: a set is no JSON."""
    worker = stage.worker(concurrency=2, conf=PICKLE, environment=AS_ROOT)
    with stage.busy("skip") as (job, _, _):
        waits = stage.call(
            task, job, [{"seconds": 0.05, "set": {1}}], serializer="pickle", compression="gzip"
        )
        stage.deliveries(waits.id, 3, "prerun")
        assert waits.state == "PENDING"
    assert waits.get(timeout=60) == f"done:{job}"
    assert "could not be requeued" not in worker.text()
    stage.assert_settled()
    assert stage.ledger.overlaps(job=job) == []


class TestANameThatARowSays:
    """Case 50: the row changes, or is deleted, between the call and the end of the run."""

    @pytest.fixture
    def stage(self, make_stage: MakeStage) -> Stage:
        return make_stage()

    @staticmethod
    def row_of(stage: Stage, owner: str) -> int:
        """A job of this owner."""
        job = stage.job()
        TestANameThatARowSays.change(stage, job, owner)
        return job

    @staticmethod
    def change(stage: Stage, job: int, owner: str | None) -> None:
        """Give the job to another owner, or delete it."""
        with stage.rows() as connection:
            if owner is None:
                connection.execute("DELETE FROM hard_cases_job WHERE id = ?", [job])
            else:
                connection.execute(
                    "UPDATE hard_cases_job SET result = ? WHERE id = ?", [owner, job]
                )

    @pytest.mark.parametrize("then", ["another owner", "deleted"])
    def test_50_the_run_and_the_clear_after_a_kill_use_the_name_of_the_sending(
        self, stage: Stage, then: str
    ) -> None:
        job = self.row_of(stage, "ann")
        gate = {"gate": str(stage.gate())}
        result = stage.call("named_by_row", job, [gate, gate])
        self.change(stage, job, "bob" if then == "another owner" else None)
        worker = stage.worker()
        first = stage.started(job)
        assert stage.held() == ["owner:ann"]
        kill(first.pid)
        stage.started(job, 2)
        assert stage.held() == ["owner:ann"]
        stage.open_gates()
        assert result.get(timeout=60) == f"done:{job}"
        stage.assert_settled(10)
        if then == "another owner":
            assert re.search(r"WARNING.*owner:(ann.*owner:bob|bob.*owner:ann)", worker.text())

    def test_50_nothing_is_left_of_messages_whose_rows_have_changed(self, stage: Stage) -> None:
        """Whether they ran, or were killed and came not again: the next call of the first owner
        is sent."""
        moved, deleted, killed = (self.row_of(stage, owner) for owner in ("ann", "bob", "carl"))
        script = {killed: [{"gate": str(stage.gate())}, {}]}
        sent = {
            job: stage.call("named_by_row", job, script.get(job, []))
            for job in (moved, deleted, killed)
        }
        self.change(stage, moved, "dora")
        self.change(stage, deleted, None)
        stage.worker(concurrency=2)
        first = stage.started(killed)
        self.change(stage, killed, None)
        kill(first.pid)
        for job, result in sent.items():
            assert result.get(timeout=60) == f"done:{job}"
        stage.assert_settled(10)
        for job, owner in zip(sent, ("ann", "bob", "carl"), strict=True):
            again = self.row_of(stage, owner)
            assert next_call(stage, "named_by_row", again, sent[job]).get(timeout=60)


class TestAWorkerThrowsItAway:
    """Case 54: before it has made a request of the message."""

    def test_54_a_call_that_no_worker_knows_is_no_reason_to_refuse_the_next(
        self, stage: Stage
    ) -> None:
        """An old worker in a rolling deploy drops it; Celery has stored that it failed."""
        worker = stage.worker(environment={"HARD_CASES_OLD": "1"})
        job = stage.job()
        thrown_away = stage.call("new", job)
        until(lambda: "unregistered task" in worker.text(), "thrown away")
        again = next_call(stage, "new", job, thrown_away)
        assert again.id != thrown_away.id

    def test_54_the_doctor_names_a_reservation_without_a_message(self, stage: Stage) -> None:
        """The worker refuses the content type, and nothing is stored."""
        worker = stage.worker()
        job = stage.job()
        thrown_away = stage.call("named_by_row", job, serializer="pickle")
        until(lambda: "ContentDisallowed" in worker.text(), "thrown away")
        said = stage.script("""
from django.core.management import CommandError, call_command
try:
    call_command("locks", "doctor")
except (CommandError, SystemExit) as found:
    print(found)
""")
        assert "Nothing is wrong" not in said
        assert thrown_away.id in said
