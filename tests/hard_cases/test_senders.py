"""Many senders, and a ``celery beat``, with real workers: what they send is unique in the queue."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.stage.fixtures import on_both_brokers, shared_on_both_brokers
from tests.stage.stage import Stage
from tests.stage.workers import beat
from tests.steps import Meanwhile
from tests.waiting import until

pytestmark = pytest.mark.slow
BOTH = ("queued", "unfinished")
CALLS = 100
PROCESSES = 4
SENDER = """
import json
from django.db import transaction
from tests.stage.app import app

WAYS = (
    lambda task: task.delay(*args),
    lambda task: task.apply_async(args),
    lambda task: task.s(*args).delay(),
    lambda task: task.s(*args).apply_async(countdown=0),
    lambda task: task.apply_async(args, expires=3600),
)
args, ids = {args!r}, {{}}
for number in range({calls}):
    for name in {tasks!r}:
        task = app.tasks[name]
        ids.setdefault(name, []).append(WAYS[number % len(WAYS)](task).id)
        if number % 10 == 0:
            with transaction.atomic():
                task.delay_on_commit(*args)
                transaction.set_rollback(number % 20 == 0)
print(json.dumps(ids))
"""
"""sends each task so many times, in every way there is"""


class Senders:
    """Some processes that send at the same time."""

    def __init__(self, stage: Stage, args: list[Any], *tasks: str, calls: int = CALLS) -> None:
        source = SENDER.format(args=args, tasks=tasks, calls=calls // PROCESSES)
        self._processes = [Meanwhile(partial(stage.script, source, 120)) for _ in range(PROCESSES)]

    def sent(self) -> dict[str, list[str]]:
        """The different ids that they were given, for each task."""
        found = [json.loads(each.result(120)) for each in self._processes]
        return {name: sorted({one for ids in found for one in ids[name]}) for name in found[0]}


def burst(stage: Stage, args: list[Any], *tasks: str, calls: int = CALLS) -> dict[str, list[str]]:
    """Many calls of each task from some processes: the different ids that came back."""
    return Senders(stage, args, *tasks, calls=calls).sent()


@on_both_brokers
def test_100_calls_from_4_processes_send_one_message(stage: Stage) -> None:
    # Given 100 calls of a job with unique_while="queued", and 100 with "unfinished"
    job, gate = stage.job(), stage.gate()
    args = [job, [{"gate": str(gate)}]]
    before = burst(stage, args, *BOTH)

    # I expect one message of each
    assert {task: len(ids) for task, ids in before.items()} == dict.fromkeys(BOTH, 1)
    assert stage.queued() == 2

    # And while one runs (they share a lock), another "queued" one, and no other "unfinished"
    stage.worker()
    running = stage.started(job)
    (waiting,) = {ids[0] for ids in before.values()} - {running.task_id}
    during = burst(stage, args, *BOTH)
    (second,) = during["queued"]
    assert (second == waiting) == (running.task == "unfinished")
    assert second != running.task_id
    assert during["unfinished"] == before["unfinished"]
    messages = {running.task_id, waiting, second}
    assert stage.queued() == len(messages)

    # And each to run once, one after the other
    gate.touch()
    stage.assert_settled()
    starts = [entry.task_id for entry in stage.ledger.entries("start", job=job)]
    assert sorted(starts) == sorted(messages)
    assert stage.ledger.overlaps(job=job) == []


@on_both_brokers
def test_51_while_a_job_fails_and_retries_one_waits_at_every_moment(stage: Stage) -> None:
    """Five calls a second. One more may just have been taken over, and not yet been skipped."""
    stage.worker(concurrency=2)
    said = stage.script("""
import json, time
from celery import states
from tests.stage.tasks import flaky
sent, open_at, end = {}, [], time.monotonic() + 6
while time.monotonic() < end:
    result = flaky.delay(1, [{"seconds": 0.3, "then": "raise"}])
    sent[result.id] = result
    open_at.append(sum(each.state not in states.READY_STATES for each in sent.values()))
    time.sleep(0.2)
print(json.dumps(open_at))
""")
    open_at = json.loads(said)
    assert max(open_at) <= 3, open_at
    assert len(stage.ledger.entries("start", job=1)) >= 3


@shared_on_both_brokers
def test_calls_after_a_child_is_killed_send_one_message_more_at_most(shared: Stage) -> None:
    """Its message is delivered again. Before that one call may be sent, and the lock keeps the two
    apart."""
    job, gate = shared.job(), shared.gate()
    args = [job, [{"gate": str(gate)}]]
    (first,) = burst(shared, args, "unfinished", calls=8)["unfinished"]
    start = shared.started(job)
    senders = Senders(shared, args, "unfinished")
    shared.kill(start.pid)
    known = {first, *senders.sent()["unfinished"]}
    shared.started(job, 2)
    known |= {*burst(shared, args, "unfinished", calls=8)["unfinished"]}
    assert len(known) <= 2
    assert shared.queued() <= 2
    gate.touch()
    shared.assert_settled()
    assert shared.ledger.overlaps(job=job) == []
    assert known.isdisjoint(burst(shared, [job], "unfinished", calls=8)["unfinished"])
    shared.assert_settled()


@on_both_brokers
def test_31_other_classes_before_ours(stage: Stage) -> None:
    """They turn rows into keys, and send on commit: one lock's name, nothing lost, nothing reserved
    by what was rolled back."""
    job, other, gate = stage.job(), stage.job(), stage.gate()
    sending = f"""
from django.db import transaction
from tests.stage.models import Job
from tests.stage.tasks import mixed as task
first, second = Job.objects.get(pk={job}), Job.objects.get(pk={other})
"""
    stage.script(f"""{sending}
with transaction.atomic():
    task.delay(first)
    transaction.set_rollback(True)
with transaction.atomic():
    task.apply_async([first, [{{"gate": {str(gate)!r}}}]], task_id="it-runs")
    task.delay(first)
""")
    # Not before: once the first has begun, the same call is sent again.
    stage.worker(concurrency=2)
    assert stage.started(job).task_id == "it-runs"
    stage.script(f"""{sending}
task.apply_async([first], task_id="it-waits")
task.delay(first)
task.apply_async([second], task_id="another")
""")
    stage.completed(other)
    stage.deliveries("it-waits", 3)
    assert len(stage.ledger.entries("start", job=job)) == 1
    gate.touch()
    stage.assert_settled()
    # Its row is done then: it has nothing to do any more.
    assert stage.client.AsyncResult("it-waits").state == "SUCCESS"
    received = {entry.task_id for entry in stage.ledger.entries("received")}
    assert received == {"it-runs", "it-waits", "another"}
    for each in (job, other):
        stage.assert_done_once(each)
    assert stage.redis.keys("*queued mixed *") == []


# ------------------------------------------------------------------------------ beat


def due_five_times(log: Path) -> str:
    """All that beat said, once something was due so often."""
    said = log.read_text(errors="replace")
    return said if said.count("Sending due task often") >= 5 else ""


def test_an_outage_stops_no_beat(stage: Stage, tmp_path: Path) -> None:
    """What is due meanwhile is not sent; what is due afterwards is."""
    job = stage.job()
    stage.conf["beat_schedule"] = {"often": {"task": "unfinished", "schedule": 0.1, "args": [job]}}
    with beat(stage.settings() | {"STAGE_LOCKS": "redis://127.0.0.1:1/0"}, tmp_path) as log:
        said = until(lambda: due_five_times(log), "what is due five times", 60)
    assert "Message Error: Couldn't apply scheduled task often" in said
    assert "StoreUnavailable" in said
    assert stage.queued() == 0
    stage.worker()
    with beat(stage.settings(), tmp_path):
        stage.completed(job)
    stage.assert_settled()
