"""Busy locks in canvases and chains, direct calls, follow-ups, holds: cases 14, 19, 30 and 40."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import celery
import pytest

from django_tasklock import LockNotAcquired
from tests.stage.fixtures import MakeStage, on_both_brokers
from tests.stage.stage import Stage
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

# One task of each kind that may meet a hold.
KINDS = ("skip", "raising", "coalesced", "watched", "budget", "guarded", "early_retry")


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    """A stage with a worker of four children."""
    stage = make_stage()
    stage.worker(concurrency=4)
    return stage


def test_14_canvases_complete_with_the_marker_of_a_skipped_task_and_errbacks_run(
    stage: Stage,
) -> None:
    """on_conflict="skip" returns a plain value, so whatever comes next goes on. "raise" is
    LockNotAcquired, in a chain and in a chord; both end as failures."""
    both = {"chain", "chord"}
    with stage.busy() as (busy, holder, _):
        marker = {
            "status": "skipped", "reason": "already_processing", "lock": f"job:{busy}",
            "holder": holder.id,
        }  # fmt: skip
        pair = [stage.sig("skip", busy), stage.sig("skip", stage.job())]
        chain = (pair[0] | stage.sig("collect", "chain")).apply_async()
        group = celery.group(pair, app=stage.client).apply_async()
        chord = celery.chord(pair, app=stage.client)(stage.sig("collect", "chord"))
        # The job of the two headers may find its own lock held: then it is skipped as well.
        assert chain.get(timeout=60) == marker
        assert group.get(timeout=60)[0] == chord.get(timeout=60)[0] == marker

        failing = stage.sig("raising", busy) | stage.sig("collect", "never")
        failing.link_error(stage.sig("errback", "chain"))
        refused = failing.apply_async()
        body = stage.sig("collect", "never").on_error(stage.sig("errback", "chord"))
        chord = celery.chord([stage.sig("raising", busy), pair[1]], app=stage.client)(body)
        with pytest.raises(LockNotAcquired):
            refused.parent.get(timeout=60)
        until(lambda: chord.state == "FAILURE", "the chord failed", 60)
        until(lambda: {each.label for each in stage.ledger.entries("errback")} == both, "errbacks")
        assert {each.label for each in stage.ledger.entries("collected")} == both
    assert holder.get(timeout=60) == f"done:{busy}"
    stage.assert_settled()


def test_19_the_second_of_two_chained_tasks_never_finds_their_lock_busy(stage: Stage) -> None:
    """Released before the next link is sent: twenty chains, four processes, none refused."""
    jobs = [stage.job() for _ in range(20)]
    chains = [
        (stage.sig("raising", job) | stage.sig("raising", job, immutable=True)).apply_async()
        for job in jobs
    ]
    for job, chain in zip(jobs, chains, strict=True):
        assert chain.get(timeout=60) == f"done:{job}"
        assert stage.ledger.overlaps(job=job) == []
        assert stage.ledger.completions(job=job) == 2
    stage.assert_settled()


def test_19_direct_calls_chunks_and_eager_mode_lock_but_never_send_a_message(stage: Stage) -> None:
    """``task()``, ``apply()`` and task_always_eager: run if free, refused if busy, no requeue. The
    calls of a chunk are direct calls in a worker: the busy one is skipped, others run. A task that
    calls itself goes on under its own lease."""
    job = stage.job()
    said = stage.script(f"""
from django_tasklock import LockNotAcquired, locks
from tests.stage.app import app
from tests.stage.tasks import raising, retry, skip
print(raising({job}), raising.apply(({job},)).get(), skip({job}))
app.conf.task_always_eager = True
print(retry.delay({job}).get())
lease = locks.acquire("job:{job}", ttl=30)
print(skip({job})["status"], skip.delay({job}).get()["status"])
for call in (raising, retry, lambda job: retry.delay(job).get()):
    try:
        call({job})
    except LockNotAcquired:
        print("refused")
print(raising.run.__name__, lease.release())
""")
    done = f"done:{job}"
    assert said.split() == [*[done] * 4, "skipped", "skipped", *["refused"] * 3, "task", "True"]
    assert stage.ledger.completions(job=job) == 4
    assert stage.queued() == 0
    assert stage.held() == []

    fences = stage.client.send_task("itself", [stage.job(), 2]).get(timeout=60)
    assert len(fences) == 3
    assert len(set(fences)) == 1

    with stage.busy() as (busy, _, _):
        jobs = [stage.job(), busy, stage.job()]
        calls = {"task": stage.sig("skip"), "it": [[job] for job in jobs]}
        chunk = stage.client.signature("celery.starmap", kwargs=calls).apply_async()
        first, skipped, last = chunk.get(timeout=60)
        assert [first, last] == [f"done:{jobs[0]}", f"done:{jobs[2]}"]
        assert skipped["status"] == "skipped"
    stage.assert_settled()


def test_30_of_the_calls_during_a_run_the_newest_is_done_though_its_child_is_killed(
    stage: Stage,
) -> None:
    """The older ones return a marker, in a chord too."""
    with stage.busy("coalesced") as (job, holder, _):
        older = [stage.send("coalesced", job) for _ in range(2)]
        parts = [stage.sig("coalesced", job), stage.sig("coalesced", stage.job())]
        chord: Any = celery.chord(parts, app=stage.client)(stage.sig("collect", "chord"))
        # Messages that do not say when they were sent are as old as their first refusals.
        refused = [*older, chord.parent[0]]
        until(lambda: sum(each.ready() for each in refused) == 2, "all but the last are skipped")
        newest = stage.send("coalesced", job, [{"seconds": 60}, {}])
        stage.deliveries(newest.id, 3)
        markers = [each.get(timeout=60) for each in older]
    assert {marker["reason"] for marker in markers} == {"coalesced"}
    start = stage.started(job, 2)
    assert start.task_id == newest.id
    stage.kill(start.pid)
    assert holder.get(timeout=60) == newest.get(timeout=60) == f"done:{job}"
    assert chord.get(timeout=60)
    assert [run.start.task_id for run in stage.ledger.runs(job=job)] == [
        holder.id,
        *[newest.id] * 2,
    ]
    assert stage.ledger.overlaps(job=job) == []
    stage.assert_settled()


def hold_and_be_killed(stage: Stage, *names: str, seconds: float = 3600) -> None:
    """Hold the locks by a process that is killed after that."""
    with pytest.raises(EOFError):
        stage.script(f"""
import os, signal
from django_tasklock import locks
from tests.stage import ledger
for name in {names}:
    assert locks.hold(name, {seconds}, "alice", "a migration")
ledger.write("on hold")
os.kill(os.getpid(), signal.SIGKILL)
""")
    assert stage.held() == sorted(names)


def test_40_a_message_under_a_hold_waits_until_it_is_cleared_and_a_direct_call_says_by_whom(
    shared: Stage,
) -> None:
    # Given a job whose lock an operator holds
    job = shared.job()
    hold_and_be_killed(shared, f"job:{job}")

    # I expect its message to come back, and its row to be left alone
    result = shared.send("guarded", job)
    shared.deliveries(result.id, 2, "prerun")
    assert shared.row(job) == ("new", None)

    # And a direct call, which has no queue, to be skipped, and to say so
    said, happened = json.loads(
        shared.script(f"""
import json
from django_tasklock import locks
from tests.stage.tasks import guarded
print(json.dumps([guarded({job}), [event.as_json() for event in locks.history("job:{job}")]]))
""")
    )
    assert said == {
        "status": "skipped", "reason": "held_by_operator", "lock": f"job:{job}",
        "holder": None, "held_by": "alice", "hold_reason": "a migration",
    }  # fmt: skip

    # And the history to say of both by whom, and why
    (skipped,) = [event for event in happened if event["kind"] == "skipped"]
    asked = partial(shared.locks_command, "history", "--task-id", result.id, "--format", "json")
    refused = until(lambda: json.loads(asked()), "its refusals", 30)
    assert {event["owner"]["task_id"] for event in refused} == {result.id}
    assert (skipped["reason"], refused[0]["kind"]) == ("held_by_operator", "refused")
    for event in (skipped, refused[0]):
        assert (event["holder"]["held_by"], event["holder"]["reason"]) == ("alice", "a migration")

    # And the message to run within 15 seconds when the hold is cleared
    shared.locks_command("clear", f"job:{job}", interactive=False)
    cleared = shared.ledger.clock()
    assert shared.started(job).at - cleared <= 15 + PATIENCE / 4
    shared.assert_well(job, result, runs=1)


@on_both_brokers
def test_40_all_messages_of_a_hold_run_soon_after_it_and_none_before(stage: Stage) -> None:
    # Given holds of ten seconds: twenty messages for one lock, one of each kind for others, and
    # five for the permits of a name
    stage.pair(concurrency=2)
    job, *others = [stage.job() for _ in range(1 + len(KINDS))]
    began = stage.ledger.clock()
    hold_and_be_killed(stage, "tenant", *[f"job:{each}" for each in (job, *others)], seconds=10)
    sent = [("retry", job, [{"seconds": 0.01}])] * 20 + [("permitted", stage.job(), [])] * 5
    sent += [(kind, each, []) for kind, each in zip(KINDS, others, strict=True)]
    results = {stage.send(*each): each[1] for each in sent}

    # I expect each to run once, after the hold; and each to be delivered a few times, no more
    for result, its in results.items():
        assert result.get(timeout=60) == f"done:{its}"
    stage.assert_settled()
    starts = stage.ledger.entries("start")
    assert sorted(start.task_id for start in starts) == sorted(result.id for result in results)
    assert min(start.at for start in starts) >= began + 10
    met = {each.task_id for each in stage.ledger.entries("prerun") if each.at < began + 10}
    assert met == {result.id for result in results}, "some came after the hold only"
    assert stage.ledger.overlaps(job=job) == []
    (held,) = stage.ledger.entries("on hold")
    took = max(entry.at for entry in stage.ledger.entries("end")) - held.at - 10
    delivered = len(stage.ledger.entries("prerun"))
    print("seconds after the hold:", round(took, 1), "deliveries:", delivered)
    assert took < PATIENCE
    assert delivered <= 6 * len(results)
