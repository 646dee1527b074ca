"""Hard case 31: other base classes that override `apply_async` and `__call__`, with workers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.hard_cases.conftest import on_both_brokers
from tests.hard_cases.stage import Stage
from tests.waiting import until

pytestmark = pytest.mark.slow


@on_both_brokers
def test_31_other_classes_before_ours(on_stage: Callable[..., Stage], broker: str) -> None:
    """One lock's name, nothing lost, nothing reserved by what was rolled back."""
    stage = on_stage(broker)
    job, other, gate = stage.job(), stage.job(), stage.gate()
    sending = f"""
import django; django.setup()
from django.db import transaction
from tests.hard_cases.site.models import Job
from tests.celery_tasks.queue.tasks import mixed as task
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
    until(
        lambda: len(stage.ledger.entries("received", task_id="it-waits")) > 2, "it goes round", 60
    )
    assert len(stage.ledger.entries("start", job=job)) == 1
    gate.touch()
    stage.assert_settled(60)
    # Its row is done then: it has nothing to do any more.
    assert stage.client.AsyncResult("it-waits").state == "SUCCESS"
    assert {entry.task_id for entry in stage.ledger.entries("received")} == {
        "it-runs",
        "it-waits",
        "another",
    }
    for each in (job, other):
        stage.assert_done_once(each)
    assert stage.redis.keys("*queued mixed *") == []
