"""What ends before its body begins, and what a message carries: cases 45, 46, 49, 50 and 54."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from celery.exceptions import WorkerLostError
from celery.result import AsyncResult
from celery.utils import uuid

from django_tasklock import TooManyAttempts
from tests.hard_cases.conftest import MakeStage, stage_for_a_file
from tests.hard_cases.early import Lethal
from tests.hard_cases.scripted import Boom
from tests.hard_cases.stage import Stage
from tests.hard_cases.workers import AS_ROOT, kill
from tests.nights import by_day
from tests.waiting import until

pytestmark = pytest.mark.slow
CONTENT = {"accept_content": ["json", "pickle"]}
OLD = {"HARD_CASES_OLD": "1", **AS_ROOT}
"""Its code is older than that of the callers."""
ATTEMPTS = 3
"""lock_max_attempts of the tasks here"""
HOOKS = ("before_start", "receiver", "mixin")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Stage]]:
    """The stage of this file, with a worker of four children; a new one if a test has left
    anything on the last."""
    stages: list[Stage] = []
    with ExitStack() as open_stages:

        def get() -> Stage:
            if not stages or stages[-1].queued() or stages[-1].held():
                open_stages.close()
                folder = tmp_path_factory.mktemp("shared")
                stages.append(open_stages.enter_context(stage_for_a_file(folder)))
                stages[-1].worker(concurrency=4, conf=CONTENT, environment=OLD)
            return stages[-1]

        yield get


@pytest.fixture
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """That one; or one on RabbitMQ of a test's own."""
    if getattr(request, "param", "redis") == "rabbitmq":
        make_stage: MakeStage = request.getfixturevalue("make_stage")
        stage = make_stage("rabbitmq")
        stage.worker(concurrency=4, conf=CONTENT, environment=OLD)
    else:
        stage = request.getfixturevalue("shared")()
    yield stage
    print(stage.report())


on_both_brokers = pytest.mark.parametrize("stage", by_day("redis", "rabbitmq"), indirect=True)


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
    [
        *by_day(
            [*((each, "kill") for each in HOOKS), ("before_start", "_exit"), ("mixin", "sys.exit")],
            [(each, how) for each in HOOKS for how in ("_exit", "sys.exit")],
        ),
        *by_day([("unpickling", "kill")], [("unpickling", "_exit"), ("unpickling", "sys.exit")]),
    ],
    ids=["hooks", "hooks, exit", "unpickling", "unpickling, exit"],
)
def test_45_a_message_that_kills_its_child_before_its_body_is_given_up(
    stage: Stage, fates: list[tuple[str, str]]
) -> None:
    """After lock_max_attempts deaths: it fails, its row has failed, and the next call is sent."""
    lethal = {f"{how} in {place}": call_lethal(stage, place, how) for place, how in fates}
    for _, result in lethal.values():
        until(
            lambda result=result: result.ready() or ends(stage, result) > 4 * ATTEMPTS,  # type: ignore[misc]
            "it has ended, or has died too often",
        )
    # A child may die before it has said that it has the message: then the pool gives that to
    # another child, and no delivery of it has failed.
    deliveries = {
        fate: len(stage.ledger.entries("received", task_id=result.id))
        for fate, (_, result) in lethal.items()
    }
    assert deliveries == dict.fromkeys(lethal, ATTEMPTS)
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
    failed = {}
    for place in ("before_start", "mixin"):
        for how in ("raise", "ignore", "reject"):
            plan = {"early": {"at": place, "how": how}}
            job = stage.job()
            failed[job] = stage.call(task, job, headers=plan)
    for job, result in failed.items():
        until(lambda result=result: ends(stage, result), "it has failed")  # type: ignore[misc]
        assert next_call(stage, task, job, result).get(timeout=60) == f"done:{job}"
        assert ends(stage, result) == len(stage.ledger.runs(job=job)) == 1
    stage.assert_settled()


def test_46_a_child_killed_while_it_waits_for_its_lock_frees_what_its_message_had_reserved(
    stage: Stage,
) -> None:
    """Without acks_late its message is gone: the next call is sent while the lock is still held."""
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
    job, result, start = stage.begin("guarded_early", {"seconds": 60})
    kill(start.pid)
    with pytest.raises(WorkerLostError):
        result.get(timeout=60)
    until(lambda: stage.row(job)[0] == "failed", "its row has failed", 10)
    stage.assert_settled()
    assert len(stage.ledger.runs(job=job)) == 1


def test_49_a_call_with_a_serializer_of_its_own_waits_and_runs(stage: Stage) -> None:
    """It is sent again as it came, with and without acks_late: a set is no JSON."""
    script = [{"seconds": 0.05, "set": {1}}]
    with stage.busy("skip") as (job, _, _):
        waits = [
            stage.call(task, job, script, serializer="pickle", compression="gzip")
            for task in ("retry", "early_retry")
        ]
        for result in waits:
            stage.deliveries(result.id, 2, "prerun")
            assert result.state == "PENDING"
    for result in waits:
        assert result.get(timeout=60) == f"done:{job}"
        assert f"{result.id}] could not be requeued" not in stage.workers[0].text()
    stage.assert_settled()
    assert stage.ledger.overlaps(job=job) == []


def change(stage: Stage, job: int, owner: str | None) -> None:
    """Give the row to another owner, or delete it."""
    with stage.rows() as connection:
        if owner is None:
            connection.execute("DELETE FROM hard_cases_job WHERE id = ?", [job])
        else:
            connection.execute("UPDATE hard_cases_job SET result = ? WHERE id = ?", [owner, job])


@pytest.mark.parametrize("then", by_day("another owner", "deleted"))
def test_50_run_clear_and_reservation_use_the_name_of_the_sending(stage: Stage, then: str) -> None:
    """``lock_name`` reads a row, which changes before the run; and its child is killed."""
    job = stage.job()
    ann = f"ann-{job}"
    change(stage, job, ann)
    gate = {"gate": str(stage.gate())}
    result = stage.call("named_by_row", job, [gate, gate], countdown=0.5)
    change(stage, job, f"bob-{job}" if then == "another owner" else None)
    for number in (1, 2):
        run = stage.started(job, number)
        assert stage.held() == [f"owner:{ann}"]
        if number == 1:
            kill(run.pid)
    stage.open_gates()
    assert result.get(timeout=60) == f"done:{job}"
    stage.assert_settled(10)
    change(stage, again := stage.job(), ann)
    assert next_call(stage, "named_by_row", again, result).get(timeout=60) == f"done:{again}"


@pytest.mark.parametrize("where", by_day("in its body", "before it"))
def test_50_of_a_dead_child_the_main_process_ends_what_the_sending_has_named(
    stage: Stage, where: str
) -> None:
    """Without acks_late no run comes that would do it."""
    job = stage.job()
    change(stage, job, ann := f"ann-{job}")
    plan = {"early": {"at": "mixin", "how": "kill"}} if where == "before it" else {}
    script = [{"then": "kill", "seconds": 0.2}]
    result = stage.call("named_by_row_early", job, script, countdown=0.5, headers=plan)
    change(stage, job, f"bob-{job}")
    with pytest.raises(WorkerLostError):
        result.get(timeout=60)
    stage.assert_settled(10)
    change(stage, again := stage.job(), ann)
    assert next_call(stage, "named_by_row_early", again, result).get(timeout=60) == f"done:{again}"


def test_54_what_an_old_worker_throws_away_is_no_reason_to_refuse_the_next_call(
    stage: Stage,
) -> None:
    """It does not know the task; Celery has stored that the call failed."""
    thrown_away = stage.call("new", job := stage.job())
    until(lambda: thrown_away.id in stage.workers[0].text(), "thrown away")
    assert next_call(stage, "new", job, thrown_away).id != thrown_away.id


@pytest.mark.nightly
def test_54_the_doctor_names_a_reservation_without_a_message(stage: Stage) -> None:
    """The worker refuses its content type, and nothing is stored."""
    job = stage.job()
    thrown_away = stage.call("hooked", job, serializer="msgpack")
    until(lambda: "ContentDisallowed" in stage.workers[0].text(), "thrown away")
    said = stage.script("""
from django.core.management import CommandError, call_command
from tests.hard_cases.app import app  # As a project does in its package.
try:
    call_command("locks", "doctor")
except (CommandError, SystemExit) as found:
    print(found)
""")
    assert "Nothing is wrong" not in said
    assert thrown_away.id in said
