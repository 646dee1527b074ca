"""sentry-sdk with its Celery integration, which wraps the tracer, `__call__` and `apply_async`."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from django_tasklock import LockNotAcquired
from tests.nightly.surroundings.at_work import (
    MODULES,
    TTL_SECONDS,
    killed_at_work,
    need,
    skipped,
)
from tests.nightly.surroundings.envelopes import Sentry, receiving
from tests.stage.fixtures import MakeStage
from tests.stage.stage import Stage
from tests.stage.workers import Worker
from tests.waiting import until

pytestmark = pytest.mark.slow
MODULE = MODULES + "with_sentry"


@pytest.fixture
def sentry() -> Iterator[Sentry]:
    need("sentry_sdk")
    with receiving() as server:
        yield server


def worker(make_stage: MakeStage, sentry: Sentry) -> tuple[Stage, Worker]:
    """A stage with a worker of two processes, which reports to that server."""
    stage = make_stage(ttl=TTL_SECONDS)
    stage.conf["imports"] = ["tests.stage.tasks", MODULE]
    stage.environment["SURROUNDINGS_SENTRY"] = sentry.dsn
    return stage, stage.worker(concurrency=2)


def test_failures_are_reported_and_nothing_else(make_stage: MakeStage, sentry: Sentry) -> None:
    """No skip, requeue, redelivery or retry; and the lock works as without Sentry."""
    stage, process = worker(make_stage, sentry)
    recovered = killed_at_work(stage)

    # The task's own retry
    job = stage.job()
    retried = stage.send("guarded", job, [{"then": "retry"}, {}])
    assert retried.get(timeout=60) == f"done:{job}"
    assert [entry.retries for entry in stage.ledger.entries("start", job=job)] == [0, 1]

    # A call that is requeued while the lock is held, and one that is refused
    job, gate = stage.job(), stage.gate()
    holder = stage.send("guarded", job, [{"gate": str(gate)}])
    stage.started(job)
    requeued = stage.send("guarded_retry", job)
    until(lambda: len(stage.ledger.entries("prerun", task_id=requeued.id)) >= 2, "requeued")
    refused = stage.send("raising", job)
    with pytest.raises(LockNotAcquired):
        refused.get(timeout=60)
    gate.touch()
    assert holder.get(timeout=60) == f"done:{job}"
    assert requeued.get(timeout=60)["reason"] == "invalid_state"

    # A body that raises
    broken = stage.job()
    failed = stage.send("guarded", broken, [{"then": "raise"}])
    with pytest.raises(Exception, match="as the script says"):
        failed.get(timeout=60)
    assert stage.row(broken)[0] == "failed"
    stage.assert_settled()

    # What a process has not sent yet it sends when it ends.
    process.stop(signal.SIGTERM)
    assert sorted(sentry.errors()) == [("Boom", failed.id), ("LockNotAcquired", refused.id)]
    assert not [text for text in sentry.messages() if "lock" in text.lower()]
    for task_id in (recovered.id, recovered.double, retried.id, requeued.id, failed.id):
        assert sentry.transactions(task_id), task_id
    (double,) = sentry.transactions(recovered.double)
    assert double["contexts"]["trace"]["status"] == "ok"


def test_what_is_sent_is_unique_and_handed_on(make_stage: MakeStage, sentry: Sentry) -> None:
    """Its `apply_async` leaves ours what it needs: reservations, handed leases, direct calls."""
    stage, _ = worker(make_stage, sentry)
    job, gate = stage.job(), stage.gate()
    source = f"""
import django; django.setup()
import {MODULE}
from django_tasklock import locks
from tests.stage.tasks import unfinished
from tests.stage.tasks import guarded
SCRIPT = [{{"gate": {str(gate)!r}}}]
"""
    first, second = stage.script(
        f"{source}\nprint(*[unfinished.apply_async(({job}, SCRIPT)).id for _ in range(2)])"
    ).split()
    assert first == second
    stage.started(job)
    assert stage.send("guarded", job).get(timeout=60) == skipped(first, job)
    other = stage.job()
    handed, fence = stage.script(f"""{source}
lease = locks.acquire("job:{other}", ttl=600)
print(guarded.apply_async(({other}, SCRIPT), lease=lease).id, lease.fence)
""").split()
    assert stage.started(other).fence == int(fence)
    gate.touch()
    for task_id in (first, handed):
        stage.client.AsyncResult(task_id).get(timeout=60)
    stage.assert_settled()
    stage.assert_done_once(other)
    assert sentry.errors() == []
