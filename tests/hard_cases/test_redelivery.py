"""A message that is delivered again while its first run goes on: cases 3, 4, 5 and 41."""

from __future__ import annotations

import celery
import pytest

from tests.hard_cases.brokers import RedisBroker
from tests.hard_cases.conftest import MakeStage
from tests.nights import by_day
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_00_without_a_lock_a_late_redelivery_runs_the_body_beside_the_first(
    make_stage: MakeStage,
) -> None:
    """What the other tests here would see if the lock did nothing: they can fail."""
    stage = make_stage(visibility=1)
    stage.pair()
    job = stage.job()
    stage.send("plain", job, [{"seconds": 4}])
    stage.started(job, 2)
    assert stage.ledger.overlaps(job=job)


def test_03_a_message_delivered_again_while_it_runs_does_nothing_twice(
    make_stage: MakeStage,
) -> None:
    """One run; the chain's next step and the chord's body run once, with the real values."""
    stage = make_stage(visibility=2, ttl=6)
    stage.pair(concurrency=2)
    bare, guarded = stage.job(), stage.job()
    script = [{"seconds": 5}]
    chain = (stage.sig("skip", bare, script) | stage.sig("collect", "chain")).apply_async()
    chord = celery.chord([stage.sig("guarded", guarded, script)], app=stage.client)(
        stage.sig("collect", "chord")
    )
    stage.deliveries(chain.parent.id, 2)
    until(lambda: len(stage.ledger.entries("collected")) == 2, "both go on", 30)
    stage.assert_settled(30)
    assert chain.get(timeout=5) == f"done:{bare}"
    assert chord.get(timeout=5) == [f"done:{guarded}"]
    collected = {entry.label: entry.value for entry in stage.ledger.entries("collected")}
    assert collected == {"chain": f"done:{bare}", "chord": [f"done:{guarded}"]}
    assert len(stage.ledger.entries("collected")) == 2
    for job in (bare, guarded):
        assert len(stage.ledger.runs(job=job)) == 1
    assert stage.row(guarded)[0] == "done"
    assert len({entry.pid for entry in stage.ledger.entries("received")}) == 2


@pytest.mark.nightly
def test_03_a_late_redelivery_is_recognised_without_a_result_and_without_a_guard(
    make_stage: MakeStage,
) -> None:
    """Neither a stored result nor a row: what the release left behind is enough."""
    stage = make_stage(visibility=2, ttl=6)
    stage.pair()
    job = stage.job()
    result = stage.send("skip", job, [{"seconds": 5}], ignore_result=True)
    stage.deliveries(result.id, 2)
    stage.completed(job)
    stage.assert_settled(30)
    assert len(stage.ledger.runs(job=job)) == 1


@pytest.mark.parametrize("victim", by_day("child", "main"))
def test_04_a_holder_killed_after_its_redelivery_was_requeued_still_completes(
    make_stage: MakeStage, victim: str
) -> None:
    """The redelivery was the only message left: it must be requeued, not lost."""
    ttl = 6.0
    stage = make_stage(visibility=2, ttl=ttl)
    first, second = stage.pair()
    job = stage.job()
    result = stage.send("guarded", job, [{"seconds": 60}, {"seconds": 0.2}])
    start = stage.started(job)
    holder, other = (first, second) if f"{first.name}@" in start.worker else (second, first)
    # The other worker tried, and the message that it requeued was delivered again.
    until(
        lambda: stage.ledger.entries("prerun", task_id=result.id, worker=f"{other.name}@hard"),
        "the redelivery was tried",
        20,
    )
    stage.deliveries(result.id, 3)
    stage.watch(start.pid)
    killed = stage.kill(start.pid if victim == "child" else holder.pid)
    again = stage.started(job, 2, within=ttl + 10)
    assert again.at - killed < ttl + 4
    assert result.get(timeout=60) == f"done:{job}"
    stage.assert_settled(30)
    stage.assert_done_once(job)


@pytest.mark.parametrize("task", ["skip", "guarded"])
@pytest.mark.nightly
def test_05_a_connection_closed_by_the_broker_neither_overlaps_nor_repeats_the_run(
    make_stage: MakeStage, task: str
) -> None:
    """RabbitMQ delivers the message again at once, to the same worker's other child."""
    stage = make_stage("rabbitmq", ttl=6)
    stage.worker(concurrency=2)
    job, gate = stage.job(), stage.gate()
    result = stage.send(task, job, [{"gate": str(gate)}])
    stage.started(job)
    stage.broker.cut()
    stage.deliveries(result.id, 2)
    gate.touch()
    assert result.get(timeout=60) == f"done:{job}"
    stage.assert_settled(30)
    assert len(stage.ledger.runs(job=job)) == 1


def test_05_a_connection_to_redis_that_breaks_does_nothing_twice_either(
    make_stage: MakeStage,
) -> None:
    """A worker that connects to Redis again requeues what it still works on, and gets it."""
    stage = make_stage(ttl=6)
    stage.worker(concurrency=2)
    job, gate = stage.job(), stage.gate()
    result = stage.send("guarded", job, [{"gate": str(gate)}])
    stage.started(job)
    stage.broker.cut()
    stage.deliveries(result.id, 2)
    gate.touch()
    stage.completed(job)
    stage.assert_settled(30)
    assert len(stage.ledger.runs(job=job)) == 1
    stage.assert_done_once(job)


@pytest.mark.nightly
def test_05_a_redelivery_that_waits_in_the_same_worker_is_recognised_when_the_run_has_ended(
    make_stage: MakeStage,
) -> None:
    """With one child the redelivery starts a hundredth of a second after the first run's end."""
    stage = make_stage("rabbitmq", ttl=6)
    stage.worker()
    job, gate = stage.job(), stage.gate()
    result = stage.send("skip", job, [{"gate": str(gate)}], ignore_result=True)
    stage.started(job)
    stage.broker.cut()
    stage.deliveries(result.id, 2)
    gate.touch()
    stage.completed(job)
    stage.assert_settled(30)
    assert len(stage.ledger.runs(job=job)) == 1


def test_05_a_late_redelivery_refuses_no_other_call_while_it_checks(
    make_stage: MakeStage,
) -> None:
    """While it checks it must not count as a run: other calls in that moment have work to do."""
    stage = make_stage()
    broker = stage.broker
    assert isinstance(broker, RedisBroker)
    jobs = [stage.job() for _ in range(80)]
    for job in jobs:
        stage.send("skip", job)
    messages = broker.messages(stage.queue)
    assert len(messages) == len(jobs)
    stage.pair(concurrency=2)
    for job in jobs:
        stage.completed(job, within=60)
    until(stage.quiet, "all have run", 60)
    fresh = []
    for job, message in zip(jobs, messages, strict=True):
        broker.deliver_again(stage.queue, message)
        fresh.append(stage.send("skip", job))
    for job, result in zip(jobs, fresh, strict=True):
        assert result.get(timeout=60) == f"done:{job}"
        assert stage.ledger.completions(job=job) == 2
    stage.assert_settled()


@pytest.mark.parametrize("how", by_day("prefetched", "eta"))
def test_05_an_original_that_starts_after_its_redelivery_has_run_is_dropped(
    make_stage: MakeStage, how: str
) -> None:
    """Its worker had it for longer than the visibility timeout before it could start it."""
    stage = make_stage(visibility=2, ttl=6)
    stage.worker(conf={"worker_prefetch_multiplier": 4})
    long, short, gate = stage.job(), stage.job(), stage.gate()
    if how == "prefetched":
        stage.send("skip", long, [{"gate": str(gate)}])
        stage.started(long)
        result = stage.send("skip", short)
    else:
        result = stage.send("skip", short, [{"seconds": 0.2}], countdown=6)
    stage.deliveries(result.id, 1)
    stage.worker()
    assert result.get(timeout=60) == f"done:{short}"
    if how == "prefetched":
        gate.touch()
        stage.completed(long)
    stage.assert_settled(40)
    assert len(stage.ledger.runs(job=short)) == 1


def test_41_a_row_is_worked_on_once_for_each_call_that_needs_it(make_stage: MakeStage) -> None:
    """It is worked on again and again. A redelivery of the first call works on it no more, and the
    follow-up of the calls during its run does."""
    stage = make_stage(visibility=2, ttl=6)
    stage.pair()
    job = stage.job("done")
    first = stage.send("again", job, [{"seconds": 4}])
    stage.started(job)
    calls = [stage.send("again", job) for _ in range(2)]
    stage.deliveries(first.id, 2)
    values = sorted(str(call.get(timeout=60)) for call in calls)
    stage.assert_settled(30)
    assert values[0] == f"done:{job}"
    assert "coalesced" in values[1]
    assert stage.ledger.runs(job=job)[0].start.task_id == first.id
    assert len(stage.ledger.runs(job=job)) == stage.ledger.completions(job=job) == 2
    assert stage.ledger.overlaps(job=job) == []
    assert stage.row(job)[0] == "done"
