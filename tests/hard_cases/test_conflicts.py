"""Busy locks in canvases, chains on one lock, direct calls: cases 14 and 19."""

from __future__ import annotations

import celery
import pytest

from django_tasklock import LockNotAcquired
from tests.hard_cases.stage import Stage
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def stage(shared_stage: Stage) -> Stage:
    """One for all: nothing is killed here."""
    return shared_stage


def test_14_chains_groups_and_chords_complete_with_the_marker_of_a_skipped_task(
    stage: Stage,
) -> None:
    """on_conflict="skip" returns a plain value, so whatever comes next goes on."""
    busy, gate = stage.job(), stage.gate()
    holder = stage.send("skip", busy, [{"gate": str(gate)}])
    stage.started(busy)
    marker = {
        "status": "skipped",
        "reason": "already_processing",
        "lock": f"job:{busy}",
        "holder": holder.id,
    }
    other = stage.job()
    pair = [stage.sig("skip", busy), stage.sig("skip", other)]
    chain = (stage.sig("skip", busy) | stage.sig("collect", "chain")).apply_async()
    group = celery.group(pair, app=stage.client).apply_async()
    chord = celery.chord(pair, app=stage.client)(stage.sig("collect", "chord"))
    assert chain.get(timeout=60) == marker
    # The job of the two headers may find its own lock held: then it is skipped as well.
    assert group.get(timeout=60)[0] == marker
    assert chord.get(timeout=60)[0] == marker
    assert {entry.label for entry in stage.ledger.entries("collected")} >= {"chain", "chord"}
    gate.touch()
    assert holder.get(timeout=60) == f"done:{busy}"
    stage.assert_settled()


def test_14_errbacks_run_when_a_busy_lock_raises(stage: Stage) -> None:
    """on_conflict="raise": LockNotAcquired, in a chain and in a chord; both end as failures."""
    busy, gate = stage.job(), stage.gate()
    stage.send("skip", busy, [{"gate": str(gate)}])
    stage.started(busy)
    chain = stage.sig("raising", busy) | stage.sig("collect", "never")
    chain.link_error(stage.sig("errback", "chain"))
    chain = chain.apply_async()
    body = stage.sig("collect", "never").on_error(stage.sig("errback", "chord"))
    header = [stage.sig("raising", busy), stage.sig("skip", stage.job())]
    chord = celery.chord(header, app=stage.client)(body)
    with pytest.raises(LockNotAcquired):
        chain.parent.get(timeout=60)
    until(lambda: chord.state == "FAILURE", "the chord failed", 60)
    until(
        lambda: {entry.label for entry in stage.ledger.entries("errback")} == {"chain", "chord"},
        "both errbacks",
        10,
    )
    assert stage.ledger.entries("collected", label="never") == []
    gate.touch()
    stage.assert_settled()


def test_19_the_second_of_two_chained_tasks_never_finds_their_lock_busy(stage: Stage) -> None:
    """Released before the next link is sent: twenty chains, four processes, none refused."""
    jobs = [stage.job() for _ in range(20)]
    second = {"immutable": True}
    chains = [
        (stage.sig("raising", job) | stage.sig("raising", job, **second)).apply_async()
        for job in jobs
    ]
    for job, chain in zip(jobs, chains, strict=True):
        assert chain.get(timeout=60) == f"done:{job}"
        assert stage.ledger.overlaps(job=job) == []
        assert stage.ledger.completions(job=job) == 2
    stage.assert_settled()


def test_19_a_task_that_calls_itself_goes_on_under_its_own_lease(stage: Stage) -> None:
    """Re-entrant: the inner calls see the very lease of the outer run."""
    fences = stage.client.send_task("itself", [stage.job(), 2]).get(timeout=60)
    assert len(fences) == 3
    assert len(set(fences)) == 1
    stage.assert_settled()


def test_19_direct_calls_and_eager_mode_lock_but_never_send_a_message(stage: Stage) -> None:
    """``task()``, ``apply()`` and task_always_eager: run if free, refused if busy, no requeue."""
    job = stage.job()
    said = stage.script(f"""
import django; django.setup()
from django_tasklock import LockNotAcquired, locks
from tests.hard_cases.app import app
from tests.hard_cases.tasks import raising, retry, skip
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


def test_19_chunks_lock_each_call(stage: Stage) -> None:
    """The calls of a chunk are direct calls in a worker: the busy one is skipped, others run."""
    busy, gate = stage.job(), stage.gate()
    stage.send("skip", busy, [{"gate": str(gate)}])
    stage.started(busy)
    jobs = [stage.job(), busy, stage.job()]
    calls = {"task": stage.sig("skip"), "it": [[job] for job in jobs]}
    chunk = stage.client.signature("celery.starmap", kwargs=calls).apply_async()
    first, skipped, last = chunk.get(timeout=60)
    assert [first, skipped["status"], last] == [f"done:{jobs[0]}", "skipped", f"done:{jobs[2]}"]
    gate.touch()
    stage.assert_settled()
