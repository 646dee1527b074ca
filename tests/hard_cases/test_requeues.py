"""What a message goes through that waits, is retried, or is delivered again while it runs: cases
3, 4, 5, 12, 13, 15, 34, 35, 37, 41, 53 and 61."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import celery
import pytest

from django_tasklock import LockNotAcquired
from tests.nights import by_day
from tests.stage.fixtures import on_both_brokers
from tests.stage.stage import Stage
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.mark.stage(visibility=2)
def test_12_ten_polls_of_a_busy_lock_cost_none_of_the_tasks_own_retries(stage: Stage) -> None:
    # Given a busy lock, and a message for it whose task may retry twice, and does
    # (What waits in a worker's memory must not time out there, so polls are at most 1 s apart.)
    stage.pair()
    with stage.busy() as (job, holder, _):
        script = [{"then": "retry"}, {"then": "retry"}, {}]
        result = stage.send("retry", job, script, headers={"trace_mark": "kept"})
        stage.deliveries(result.id, 10, "prerun")

    # I expect it to run when the lock is free, with both retries left and its headers intact
    assert holder.get(timeout=60) == result.get(timeout=60) == f"done:{job}"
    starts = stage.ledger.entries("start", task_id=result.id)
    assert [(start.retries, start.mark) for start in starts] == [(n, "kept") for n in range(3)]
    assert stage.ledger.overlaps(job=job) == []
    stage.assert_settled()


def test_13_a_wait_longer_than_its_budget_ends_as_configured(stage: Stage) -> None:
    """LockNotAcquired after lock_retry_for; the shared task instance is left as it was."""
    stage.worker(concurrency=2)
    with stage.busy() as (job, _, start):
        result = stage.send("budget", job)
        with pytest.raises(LockNotAcquired):
            result.get(timeout=60)
        polls = stage.ledger.entries("prerun", task_id=result.id)
        assert polls[-1].at - polls[0].at >= 2.5
        assert polls[-1].at - start.at < 10
        # The child that holds the lock is busy: this is answered by the one that polled.
        attributes = stage.client.send_task("own_attributes", ["budget"]).get(timeout=60)
        assert "override_max_retries" not in attributes
    stage.assert_settled()
    assert len(stage.ledger.runs(job=job)) == 1


@pytest.mark.stage(ttl=10.0)
def test_15_autoretry_without_delay_on_two_workers_neither_overlaps_nor_skips_nor_waits(
    stage: Stage,
) -> None:
    """The retry is published before the lock is released: the other worker may be that quick."""
    stage.pair(concurrency=2)
    jobs = [stage.job() for _ in range(12)]
    script = [{"seconds": 0.02, "then": "raise"}, {"seconds": 0.02, "then": "raise"}, {}]
    results = [stage.send("autoretry", job, script) for job in jobs]
    for job, result in zip(jobs, results, strict=True):
        assert result.get(timeout=60) == f"done:{job}"
    stage.assert_settled()
    spans = []
    for job in jobs:
        starts = stage.ledger.entries("start", job=job)
        assert [start.retries for start in starts] == [0, 1, 2]
        stage.assert_done_once(job)
        spans += [later.at - start.at for start, later in pairwise(starts)]
    print("longest time between two tries:", round(max(spans), 3))
    assert max(spans) < 5


def test_53_autoretry_sees_that_the_lock_is_taken_or_that_the_store_is_silent(stage: Stage) -> None:
    """Where ``on_conflict`` or ``on_outage`` is "raise", the task's ``autoretry_for`` decides."""
    stage.worker(concurrency=2)
    with stage.busy("skip") as (job, _, _):
        taken = stage.send("autoretry_taken", job)
        stage.deliveries(taken.id, 3, "prerun")
    assert taken.get(timeout=60) == f"done:{job}"
    stage.locks.kill()
    silent = stage.send("autoretry_outage", job := stage.job())
    stage.deliveries(silent.id, 2, "prerun")
    stage.locks.restart()
    assert silent.get(timeout=60) == f"done:{job}"
    stage.assert_settled()
    assert stage.ledger.entries("start", task_id=silent.id)[0].retries > 0


@pytest.mark.parametrize("task", by_day("guarded_retry", "guarded_early"))
def test_61_a_retry_that_does_not_raise_works_on_the_row(shared: Stage, task: str) -> None:
    """``self.retry(throw=False)``: the body goes on to its end, and its retry finds the row."""
    job = shared.job()
    shared.send(task, job, [{"then": "retry on"}, {}])
    again = shared.started(job, 2)
    assert again.retries == 1
    until(lambda: shared.row(job)[0] == "done", "its row is done", 10)
    shared.assert_settled()
    shared.assert_completed(job, 2)
    assert shared.row(job) == ("done", again.fence)


@pytest.mark.parametrize("task", by_day("retry", "early_retry", "coalesced", "retry routed"))
@pytest.mark.stage("rabbitmq")
def test_34_a_message_of_a_quorum_queue_waits_there_for_its_lock(stage: Stage, task: str) -> None:
    """With and without acks_late, and as a follow-up; from a queue that is not the default one,
    also if the message came there by a routing key that fits the pattern of the queue.

    RabbitMQ delays it, by a second at least, so that no worker is asked in vain all the time. It is
    delivered more often than the queue delivers one message again (case 35).
    """
    stage.use_quorum_queue(limit=1)
    stage.worker(concurrency=2, options=("-Q", stage.queue))
    task, _, routed = task.partition(" ")
    where: dict[str, Any] = {"queue": stage.queue}
    if routed:
        where = {"exchange": stage.queue, "routing_key": f"{stage.queue}.encode"}
    with stage.busy(task, **where) as (job, holder, _):
        result = stage.send(task, job, **where)
        stage.deliveries(result.id, 3)
    assert holder.get(timeout=60) == result.get(timeout=60) == f"done:{job}"
    received = [entry.at for entry in stage.ledger.entries("received", task_id=result.id)]
    assert all(later - at > 0.9 for at, later in pairwise(received))
    stage.assert_completed(job, 2)
    stage.assert_settled()


@pytest.mark.stage("rabbitmq")
def test_34_debounced_calls_are_sent_to_a_quorum_queue(stage: Stage) -> None:
    """By less than a second, and by what is left of ``debounce_max``: the last call runs."""
    stage.use_quorum_queue(limit=1)
    stage.worker(concurrency=2, options=("-Q", stage.queue))
    job = stage.job()
    calls = [stage.call("debounced", job, queue=stage.queue) for _ in range(3)]
    until(lambda: stage.ledger.entries("start", task_id=calls[-1].id), "the last call's run")
    stage.assert_settled()


def test_37_what_hides_the_arguments_of_a_call_hides_them_while_it_waits(stage: Stage) -> None:
    """In the events and in ``inspect``, whatever the message has been through."""
    stage.worker(concurrency=2, options=("-E",))
    shown: list[tuple[str, str]] = []

    def note(event: dict[str, str]) -> None:
        if event["uuid"] == result.id:
            shown.append((event["args"], event["kwargs"]))

    with stage.busy() as (job, _, _):
        with stage.client.connection() as connection:
            events = stage.client.events.Receiver(connection, handlers={"task-received": note})
            listening = events.itercapture(limit=None, timeout=None, wakeup=False)
            next(listening)
            result = stage.send("retry", job, argsrepr="(<hidden>)", kwargsrepr="{<hidden>}")
            for _ in listening:
                if len(shown) == 3:
                    break
        inspect = stage.client.control.inspect()
        waiting = until(
            lambda: [each for found in (inspect.scheduled() or {}).values() for each in found],
            "the message in a worker",
        )
        assert [str(each["request"]["args"]) for each in waiting] == ["(<hidden>)"]
    assert result.get(timeout=60) == f"done:{job}"
    assert set(shown) == {("(<hidden>)", "{<hidden>}")}
    stage.assert_settled()


@pytest.mark.nightly
def test_many_jobs_of_one_lock_come_back_one_after_the_other(shared: Stage) -> None:
    """Forty messages at once, one lock, four children: nobody asks again and again, none is lost,
    and the lock does not stand free for long. On an idle machine each comes twice, and they take
    10 s; the bounds are for a busy one."""
    job = shared.job()
    began = time.monotonic()
    results = [shared.send("retry", job, [{"seconds": 0.2}]) for _ in range(40)]
    for result in results:
        assert result.get(timeout=120) == f"done:{job}"
    took = time.monotonic() - began
    received = shared.ledger.entries("received")
    counts = [sum(entry.task_id == result.id for entry in received) for result in results]
    print(f"{took:.1f} s; deliveries: {sum(counts) / 40:.1f} on average, {max(counts)} at most")
    assert max(counts) <= 6
    assert sum(counts) <= 100
    assert took < 25
    assert shared.ledger.overlaps(job=job) == []
    shared.assert_settled()


# ------------------------------------------------------------------------------ delivered again


TTL_SECONDS = 6.0
REDELIVERED = pytest.mark.stage(visibility=2, ttl=TTL_SECONDS)


@REDELIVERED
def test_03_a_message_delivered_again_while_it_runs_does_nothing_twice(stage: Stage) -> None:
    # Given jobs that last longer than the broker waits for them: in a chain, in a chord, and
    # one without a row or a stored result
    stage.pair(concurrency=3)
    bare, guarded, forgotten = (stage.job() for _ in range(3))
    script = [{"seconds": 5}]
    chain = (stage.sig("skip", bare, script) | stage.sig("collect", "chain")).apply_async()
    chord = celery.chord([stage.sig("guarded", guarded, script)], app=stage.client)(
        stage.sig("collect", "chord")
    )
    for each in (chain.parent, stage.send("skip", forgotten, script, ignore_result=True)):
        stage.deliveries(each.id, 2)

    # I expect the chain's next step and the chord's body to run once, with the real values
    until(lambda: len(stage.ledger.entries("collected")) == 2, "both go on", 30)
    stage.assert_settled(30)
    assert chain.get(timeout=5) == f"done:{bare}"
    assert chord.get(timeout=5) == [f"done:{guarded}"]
    collected = [(entry.label, entry.value) for entry in stage.ledger.entries("collected")]
    assert sorted(collected) == [("chain", f"done:{bare}"), ("chord", [f"done:{guarded}"])]

    # And each job to run once, though both workers had its message
    for job in (bare, guarded, forgotten):
        assert len(stage.ledger.runs(job=job)) == 1
    stage.assert_done_once(guarded)
    assert len({entry.pid for entry in stage.ledger.entries("received")}) == 2


@REDELIVERED
@pytest.mark.parametrize("victim", by_day("child", "main"))
def test_04_a_holder_killed_after_its_redelivery_was_requeued_still_completes(
    stage: Stage, victim: str
) -> None:
    """The redelivery was the only message left: it must be requeued, not lost."""
    first, second = stage.pair()
    job, result, start = stage.begin("guarded", {"seconds": 60}, {})
    holder, other = (first, second) if f"{first.name}@" in start.worker else (second, first)
    # The other worker tried, and the message that it requeued was delivered again.
    until(
        lambda: stage.ledger.entries("prerun", task_id=result.id, worker=f"{other.name}@hard"),
        "the redelivery was tried",
        20,
    )
    stage.deliveries(result.id, 3)
    killed = stage.kill(start.pid if victim == "child" else holder.pid)
    assert stage.started(job, 2).at - killed < TTL_SECONDS + 4
    stage.assert_well(job, result)


@on_both_brokers
@pytest.mark.parametrize(("task", "processes"), by_day(("guarded", 2), ("skip", 2), ("skip", 1)))
@pytest.mark.stage(ttl=TTL_SECONDS)
def test_05_a_broken_connection_neither_overlaps_nor_repeats_the_run(
    stage: Stage, task: str, processes: int
) -> None:
    """RabbitMQ delivers the message again at once, to the same worker. A worker that connects to
    Redis again requeues what it works on, and gets it. With one child the redelivery starts a
    hundredth of a second after the run's end, when a result may not be stored."""
    stage.worker(concurrency=processes)
    with stage.busy(task, ignore_result=processes == 1) as (job, result, _):
        stage.broker.cut()
        stage.deliveries(result.id, 2)
    stage.completed(job)
    stage.assert_settled(30)
    assert len(stage.ledger.runs(job=job)) == 1


@REDELIVERED
@pytest.mark.parametrize("how", by_day("prefetched", "eta"))
def test_05_an_original_that_starts_after_its_redelivery_has_run_is_dropped(
    stage: Stage, how: str
) -> None:
    """Its worker had it for longer than the visibility timeout before it could start it. The
    sender knows the task's class."""
    stage.worker(conf={"worker_prefetch_multiplier": 4})
    short = stage.job()
    options: dict[str, Any] = {"countdown": 6} if how == "eta" else {}
    with stage.busy() as (long, _, _):
        stage.deliveries(stage.call("skip", short, **options).id, 1)
        stage.worker()
        stage.completed(short)
    stage.completed(long)
    stage.assert_settled(40)
    assert len(stage.ledger.runs(job=short)) == 1


@pytest.mark.stage(visibility=3, ttl=TTL_SECONDS)
def test_41_a_row_is_worked_on_once_for_each_call_that_needs_it(stage: Stage) -> None:
    """It is worked on again and again. A redelivery of the first call works on it no more, and the
    follow-up of the calls during its run does."""
    stage.pair()
    job = stage.job("done")
    first = stage.send("again", job, [{"seconds": 5}])
    stage.started(job)
    calls = [stage.send("again", job) for _ in range(2)]
    stage.deliveries(first.id, 2)
    values = sorted(str(call.get(timeout=60)) for call in calls)
    stage.assert_settled(30)
    assert values[0] == f"done:{job}"
    assert "coalesced" in values[1]
    assert stage.ledger.runs(job=job)[0].start.task_id == first.id
    stage.assert_completed(job, 2, runs=2)
    assert stage.row(job)[0] == "done"
