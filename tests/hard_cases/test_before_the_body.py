"""What ends before its body begins, and what a message carries: cases 45, 46, 49, 50 and 54."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from celery.exceptions import WorkerLostError
from celery.result import AsyncResult
from celery.utils import uuid

from django_tasklock import TooManyAttempts
from tests.nights import by_day
from tests.stage.early import Lethal
from tests.stage.fixtures import on_both_brokers, shared_on_both_brokers
from tests.stage.scripted import Boom
from tests.stage.stage import Stage
from tests.stage.workers import kill
from tests.waiting import until

pytestmark = pytest.mark.slow
ATTEMPTS = 3
"""lock_max_attempts of the tasks here"""
HOOKS = ("before_start", "receiver", "mixin")
EXITS = ("_exit", "sys.exit")


def plan(place: str, how: str, **when: int) -> dict[str, Any]:
    """The options of a call that ends in this place, before its body."""
    return {"headers": {"early": {"at": place, "how": how, **when}}}


def call_lethal(stage: Stage, place: str, how: str) -> tuple[int, AsyncResult[Any]]:
    """Call a job that ends its child in this place, each time."""
    job, task_id = stage.job(), uuid()
    if place == "unpickling":
        script: Sequence[Any] = [Lethal(task_id, how)]
        return job, stage.call("hooked", job, script, task_id=task_id, serializer="pickle")
    return job, stage.call("hooked", job, task_id=task_id, **plan(place, how))


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


@shared_on_both_brokers
@pytest.mark.parametrize(
    "fates",
    [
        *by_day(
            [*((each, "kill") for each in HOOKS), ("before_start", "_exit"), ("mixin", "sys.exit")],
            [(each, how) for each in HOOKS for how in EXITS],
        ),
        *by_day([("unpickling", "kill")], [("unpickling", how) for how in EXITS]),
    ],
    ids=["hooks", "hooks, exit", "unpickling", "unpickling, exit"],
)
def test_45_a_message_that_kills_its_child_before_its_body_is_given_up(
    shared: Stage, fates: list[tuple[str, str]]
) -> None:
    # Given messages that end their child in a hook, in a mixin, or by their arguments
    lethal = {f"{how} in {place}": call_lethal(shared, place, how) for place, how in fates}
    for _, result in lethal.values():
        until(
            lambda result=result: result.ready() or ends(shared, result) > 4 * ATTEMPTS,  # type: ignore[misc]
            "it has ended, or has died too often",
        )

    # I expect each to be delivered lock_max_attempts times. (A child may die before it has said
    # that it has the message: then the pool gives that to another, and no delivery has failed.)
    deliveries = {
        fate: len(shared.ledger.entries("received", task_id=result.id))
        for fate, (_, result) in lethal.items()
    }
    assert deliveries == dict.fromkeys(lethal, ATTEMPTS)

    # And to fail with its row, and the next call to be sent
    for job, result in lethal.values():
        with pytest.raises(TooManyAttempts):
            result.get(timeout=60)
        until(lambda job=job: shared.row(job)[0] == "failed", "its row has failed", 10)  # type: ignore[misc]
        next_call(shared, "hooked", job, result)
    shared.assert_settled()


@pytest.mark.parametrize("task", by_day("hooked", "hooked_early"))
def test_46_what_fails_before_its_body_frees_what_it_has_reserved(shared: Stage, task: str) -> None:
    """An error, Ignore or Reject, in ``before_start`` or a mixin: the next call is sent, and
    runs."""
    failed = {}
    for place in ("before_start", "mixin"):
        for how in ("raise", "ignore", "reject"):
            job = shared.job()
            failed[job] = shared.call(task, job, **plan(place, how))
    for job, result in failed.items():
        until(lambda result=result: ends(shared, result), "it has failed")  # type: ignore[misc]
        assert next_call(shared, task, job, result).get(timeout=60) == f"done:{job}"
        assert ends(shared, result) == len(shared.ledger.runs(job=job)) == 1
    shared.assert_settled()


def test_46_a_child_killed_while_it_waits_for_its_lock_frees_what_its_message_had_reserved(
    shared: Stage,
) -> None:
    """Without acks_late its message is gone: the next call is sent while the lock is still held."""
    with shared.busy("skip") as (job, holder, _):
        waits = shared.call("hooked_early", job)
        shared.deliveries(waits.id, 1, "prerun")
        kill(shared.ledger.entries("prerun", task_id=waits.id)[0].pid)
        again = next_call(shared, "hooked_early", job, waits)
    assert holder.get(timeout=60) == again.get(timeout=60) == f"done:{job}"
    with pytest.raises(WorkerLostError):
        waits.get(timeout=60)
    shared.assert_settled()


@pytest.mark.parametrize(
    ("task", "how"),
    by_day(("hooked_coalesced", "raise"), ("hooked_coalesced_early", "kill")),
)
def test_46_after_a_follow_up_that_ended_before_its_body_the_next_refused_call_is_one(
    shared: Stage, task: str, how: str
) -> None:
    """Coalesced calls rely on the follow-up: who comes after its end is not told that it waits."""
    with shared.busy(task) as (job, holder, _):
        options = plan("before_start", how, **{"from": 2})
        follow_up = shared.call(task, job, **options)
        with pytest.raises(Boom if how == "raise" else WorkerLostError):
            follow_up.get(timeout=60)
        last = shared.call(task, job)
        shared.deliveries(last.id, 1, "prerun")
    assert holder.get(timeout=60) == last.get(timeout=60) == f"done:{job}"
    shared.assert_settled()


def test_46_the_row_of_a_killed_child_has_failed_where_its_message_does_not_come_again(
    shared: Stage,
) -> None:
    """Without acks_late: Celery has stored the failure."""
    job, result, start = shared.begin("guarded_early", {"seconds": 60})
    kill(start.pid)
    with pytest.raises(WorkerLostError):
        result.get(timeout=60)
    until(lambda: shared.row(job)[0] == "failed", "its row has failed", 10)
    shared.assert_settled()
    assert len(shared.ledger.runs(job=job)) == 1


def test_49_a_call_with_a_serializer_of_its_own_waits_and_runs(shared: Stage) -> None:
    """It is sent again as it came, with and without acks_late; a retry keeps it, too. A set is no
    JSON."""
    script: list[dict[str, Any]] = [{"set": {1}, "then": "retry"}, {}]
    with shared.busy("skip") as (job, holder, _):
        waits = [
            shared.call(task, job, script, serializer="pickle", compression="gzip")
            for task in ("retry", "early_retry")
        ]
        for result in waits:
            shared.deliveries(result.id, 2, "prerun")
            assert result.state == "PENDING"
    assert holder.get(timeout=60) == f"done:{job}"
    for result in waits:
        assert result.get(timeout=60) == f"done:{job}"
        assert f"{result.id}] could not be requeued" not in shared.workers[0].text()
        starts = shared.ledger.entries("start", task_id=result.id)
        assert [start.retries for start in starts] == [0, 1]
    shared.assert_settled()
    assert shared.ledger.overlaps(job=job) == []


def change(stage: Stage, job: int, owner: str | None) -> None:
    """Give the row to another owner, or delete it."""
    with stage.rows() as connection:
        if owner is None:
            connection.execute("DELETE FROM stage_job WHERE id = ?", [job])
        else:
            connection.execute("UPDATE stage_job SET result = ? WHERE id = ?", [owner, job])


def assert_next_is_sent(stage: Stage, task: str, before: AsyncResult[Any], owner: str) -> None:
    """Nothing is left of a message, and the next call of another job of its owner runs."""
    stage.assert_settled(10)
    change(stage, again := stage.job(), owner)
    assert next_call(stage, task, again, before).get(timeout=60) == f"done:{again}"


@pytest.mark.parametrize("then", by_day("another owner", "deleted"))
def test_50_run_clear_and_reservation_use_the_name_of_the_sending(shared: Stage, then: str) -> None:
    """``lock_name`` reads a row, which changes before the run; and its child is killed."""
    job = shared.job()
    ann = f"ann-{job}"
    change(shared, job, ann)
    gate = {"gate": str(shared.gate())}
    result = shared.call("named_by_row", job, [gate, gate], countdown=0.5)
    change(shared, job, f"bob-{job}" if then == "another owner" else None)
    for number in (1, 2):
        run = shared.started(job, number)
        assert shared.held() == [f"owner:{ann}"]
        if number == 1:
            kill(run.pid)
    shared.open_gates()
    assert result.get(timeout=60) == f"done:{job}"
    assert_next_is_sent(shared, "named_by_row", result, ann)


@pytest.mark.parametrize("where", by_day("in its body", "before it"))
def test_50_of_a_dead_child_the_main_process_ends_what_the_sending_has_named(
    shared: Stage, where: str
) -> None:
    """Without acks_late no run comes that would do it."""
    job = shared.job()
    change(shared, job, ann := f"ann-{job}")
    options = plan("mixin", "kill") if where == "before it" else {}
    script = [{"then": "kill", "seconds": 0.2}]
    result = shared.call("named_by_row_early", job, script, countdown=0.5, **options)
    change(shared, job, f"bob-{job}")
    with pytest.raises(WorkerLostError):
        result.get(timeout=60)
    assert_next_is_sent(shared, "named_by_row_early", result, ann)


@shared_on_both_brokers
def test_54_what_an_old_worker_throws_away_is_no_reason_to_refuse_the_next_call(
    shared: Stage,
) -> None:
    """As during a deployment: it does not know the task; Celery has stored that the call failed."""
    thrown_away = shared.call("new", job := shared.job())
    until(lambda: thrown_away.state == "FAILURE", "thrown away")
    next_call(shared, "new", job, thrown_away)


@on_both_brokers
def test_54_the_doctor_finds_the_reservation_of_a_message_that_is_nowhere(stage: Stage) -> None:
    """A worker refuses its content type, and stores no result. It says nothing of a message that is
    in the queue, or with a worker, and nothing where no worker answers."""
    gone = stage.call("queued", 1, serializer="pickle")
    later = stage.call("queued", 2, countdown=600)
    assert reservations(stage) == []
    worker = stage.worker()
    stage.deliveries(later.id, 1)
    until(lambda: "Refusing to deserialize" in worker.text(), "the message is thrown away", 60)
    ((what, serious, message),) = reservations(stage)
    assert (what, serious) == ("job:1", False)
    assert f"queued[{gone.id}]" in message
    assert stage.call("queued", 1).id == gone.id

    # When the reservation is ended, I expect the next call to be sent
    stage.locks_command("clear", "--queued", "job:1", interactive=False)
    assert stage.call("queued", 1).id != gone.id
    assert reservations(stage) == []


def test_the_doctor_looks_into_the_queues_of_the_workers(stage: Stage) -> None:
    """The process of the doctor does not know the queue by itself."""
    queue = f"{stage.queue}-videos"
    worker = stage.worker(options=("-Q", queue))
    job, gate = stage.job(), stage.gate()
    stage.call("queued", job, [{"gate": str(gate)}], queue=queue)
    waits = stage.call("queued", stage.job(), queue=queue)
    stage.started(job)
    assert reservations(stage) == []
    gate.touch()
    until(lambda: f"[{waits.id}] succeeded" in worker.text(), "what has waited has run", 60)


def reservations(stage: Stage) -> list[list[Any]]:
    """What the doctor says of reservations."""
    return [
        [each["what"], each["serious"], each["message"]]
        for each in stage.doctor()
        if each["kind"] == "reservation"
    ]
