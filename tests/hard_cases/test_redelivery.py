"""A message that is delivered again while its first run goes on: cases 3, 4, 5 and 41."""

from __future__ import annotations

from typing import Any

import celery
import pytest

from tests.nights import by_day
from tests.stage.fixtures import on_both_brokers
from tests.stage.stage import Stage
from tests.waiting import until

TTL_SECONDS = 6.0
pytestmark = [pytest.mark.slow, pytest.mark.stage(visibility=2, ttl=TTL_SECONDS)]


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
