"""A click's lease goes on in the job that it sends: real processes, workers and brokers."""

from __future__ import annotations

import pytest

from tests.stage.fixtures import on_both_brokers, shared_on_both_brokers
from tests.stage.stage import Stage

pytestmark = pytest.mark.slow
LONG_SECONDS = 60


def click(stage: Stage, job: int, script: object = (), ttl: float = 30) -> str:
    """What a view answers: "409", or the fence of the lease that its job got."""
    return stage.script(f"""
from django_tasklock import LockNotAcquired, lock
from tests.stage.tasks import guarded
try:
    with lock("job:{job}", ttl={ttl}) as lease:
        guarded.apply_async([{job}, {script!r}], lease=lease)
        print(lease.fence)
except LockNotAcquired:
    print(409)
""").strip()


@on_both_brokers
def test_a_second_click_is_refused_until_the_job_has_ended(stage: Stage) -> None:
    # Given a click whose job waits in the queue
    job, gate = stage.job(), stage.gate()
    fence = click(stage, job, [{"gate": str(gate)}])
    assert click(stage, job) == "409"

    # I expect the job to run under the lease of the click
    stage.worker()
    assert str(stage.started(job).fence) == fence
    assert click(stage, job) == "409"

    # And clicks to be refused until it has ended, and no longer
    gate.touch()
    stage.completed(job)
    stage.assert_settled()
    stage.assert_done_once(job)
    assert int(click(stage, job)) > int(fence)


@pytest.mark.nightly
@pytest.mark.stage(visibility=2)
def test_killed_before_the_run_adopts_the_next_delivery_does(stage: Stage) -> None:
    worker, job = stage.worker(), stage.job()
    stage.begin("skip", {"seconds": LONG_SECONDS}, {})
    fence = click(stage, job, ttl=LONG_SECONDS)
    stage.kill(worker.pid)
    stage.worker(concurrency=2)
    assert str(stage.started(job).fence) == fence
    stage.assert_settled()
    stage.assert_done_once(job)


@shared_on_both_brokers
def test_killed_after_the_run_adopted_the_lock_is_free_at_once(shared: Stage) -> None:
    """The message comes again, and its handle is spent."""
    job = shared.job()
    fence = click(shared, job, [{"seconds": LONG_SECONDS}, {}], ttl=LONG_SECONDS)
    first = shared.started(job)
    assert str(first.fence) == fence
    shared.kill(first.pid)
    assert shared.started(job, 2).fence > first.fence
    shared.completed(job)
    shared.assert_settled()
    shared.assert_done_once(job)
