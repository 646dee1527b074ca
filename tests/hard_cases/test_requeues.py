"""What a message that waits goes through in its broker: cases 34, 35 and 37."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.hard_cases.conftest import MakeStage
from tests.hard_cases.stage import Stage
from tests.nights import by_day
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def quorum_stage(make_stage: MakeStage) -> Callable[[int], Stage]:
    """Makes a stage on a quorum queue with an ``x-delivery-limit``, and starts its worker."""

    def make(limit: int) -> Stage:
        stage = make_stage("rabbitmq")
        stage.use_quorum_queue(limit)
        stage.worker(concurrency=2, options=("-Q", stage.queue))
        return stage

    return make


def received(stage: Stage, task_id: str) -> list[float]:
    """When the message was delivered."""
    return [entry.at for entry in stage.ledger.entries("received", task_id=task_id)]


@pytest.mark.parametrize("task", by_day("retry", "early_retry", "coalesced", "retry routed"))
def test_34_a_message_of_a_quorum_queue_waits_there_for_its_lock(
    quorum_stage: Callable[[int], Stage], task: str
) -> None:
    """With and without acks_late, and as a follow-up; from a queue that is not the default one,
    also if the message came there by a routing key that fits the pattern of the queue.

    RabbitMQ delays it, by a second at least, so that no worker is asked in vain all the time.
    """
    stage = quorum_stage(20)
    job, gate = stage.job(), stage.gate()
    task, _, routed = task.partition(" ")
    where: dict[str, Any] = {"queue": stage.queue}
    if routed:
        where = {"exchange": stage.queue, "routing_key": f"{stage.queue}.encode"}
    holder = stage.send(task, job, [{"gate": str(gate)}], **where)
    stage.started(job)
    result = stage.send(task, job, **where)
    stage.deliveries(result.id, 3)
    gate.touch()
    assert holder.get(timeout=60) == result.get(timeout=60) == f"done:{job}"
    assert all(later - at > 0.9 for at, later in pairwise(received(stage, result.id)))
    assert stage.ledger.overlaps(job=job) == []
    assert stage.ledger.completions(job=job) == 2
    stage.assert_settled()


def test_34_debounced_calls_are_sent_to_a_quorum_queue(
    quorum_stage: Callable[[int], Stage],
) -> None:
    """By less than a second, and by what is left of ``debounce_max``: the last call runs."""
    stage = quorum_stage(20)
    job = stage.job()
    said = stage.script(f"""
import django; django.setup()
import time
from tests.hard_cases.tasks import debounced
for _ in range(3):
    print(debounced.apply_async([{job}], queue={stage.queue!r}).id)
    time.sleep(0.1)
""")
    ids = said.split()
    assert len(ids) == 3
    until(lambda: stage.ledger.entries("start", task_id=ids[-1]), "the last call's run")
    stage.assert_settled()


def test_35_waiting_for_a_lock_does_not_use_up_the_deliveries_of_a_queue(
    quorum_stage: Callable[[int], Stage],
) -> None:
    """It is delivered more often than the queue delivers one message again."""
    stage = quorum_stage(1)
    job, gate = stage.job(), stage.gate()
    stage.send("skip", job, [{"gate": str(gate)}], queue=stage.queue)
    stage.started(job)
    result = stage.send("retry", job, queue=stage.queue)
    stage.deliveries(result.id, 3)
    gate.touch()
    assert result.get(timeout=60) == f"done:{job}"
    assert stage.ledger.overlaps(job=job) == []
    stage.assert_settled()


def test_37_what_hides_the_arguments_of_a_call_hides_them_while_it_waits(stage: Stage) -> None:
    """In the events and in ``inspect``, whatever the message has been through."""
    worker = stage.worker(concurrency=2, options=("-E",))
    job, gate = stage.job(), stage.gate()
    stage.send("skip", job, [{"gate": str(gate)}])
    stage.started(job)
    shown: list[tuple[str, str]] = []

    def note(event: dict[str, str]) -> None:
        if event["uuid"] == result.id:
            shown.append((event["args"], event["kwargs"]))

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
    gate.touch()
    assert result.get(timeout=60) == f"done:{job}"
    assert set(shown) == {("(<hidden>)", "{<hidden>}")}
    assert worker.running
    stage.assert_settled()


@pytest.mark.nightly
def test_many_jobs_of_one_lock_come_back_one_after_the_other(stage: Stage) -> None:
    """Forty messages at once, one lock, four children: nobody asks again and again, none is lost,
    and the lock does not stand free for long. The bounds are for a busy machine."""
    stage.worker(concurrency=4)
    job = stage.job()
    began = time.monotonic()
    results = [stage.send("retry", job, [{"seconds": 0.2}]) for _ in range(40)]
    for result in results:
        assert result.get(timeout=120) == f"done:{job}"
    took = time.monotonic() - began
    counts = [len(received(stage, result.id)) for result in results]
    print(f"{took:.1f} s; deliveries: {sum(counts) / 40:.1f} on average, {max(counts)} at most")
    assert max(counts) <= 10
    assert took < 25
    assert stage.ledger.overlaps(job=job) == []
    stage.assert_settled()
