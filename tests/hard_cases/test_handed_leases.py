"""A click's lease goes on in the job that it sends: real processes, workers and brokers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.hard_cases.conftest import MakeStage, on_both_brokers
from tests.hard_cases.stage import Stage
from tests.hard_cases.workers import ROOT
from tests.waiting import until

pytestmark = pytest.mark.slow

HANDLE_SECONDS = 3
LONG_SECONDS = 60
SETTING_UP = """
import os, signal, sys
import django; django.setup()
from celery import Task
from django_tasklock import LockNotAcquired, lock, locks
from tests.hard_cases.tasks import guarded, skip
die = lambda *args, **options: os.kill(os.getpid(), signal.SIGKILL)
"""


def click(stage: Stage, job: int, script: object = (), ttl: float = 30, **options: object) -> str:
    """What a view answers: "409", or the fence of the lease that its job got."""
    return stage.script(f"""{SETTING_UP}
try:
    with lock("job:{job}", ttl={ttl}) as lease:
        guarded.apply_async([{job}, {script!r}], lease=lease, **{options!r})
        print(lease.fence)
except LockNotAcquired:
    print(409)
""").strip()


def killed(stage: Stage, program: str) -> None:
    """Run a view's process, which ends by its own SIGKILL."""
    done = subprocess.run(
        [sys.executable, "-c", SETTING_UP + program],
        cwd=ROOT,
        env={**os.environ, **stage.environment, "HARD_CASES_CELERY": _conf(stage)},
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL


def _conf(stage: Stage) -> str:
    import json

    return json.dumps(stage.conf)


def left(stage: Stage, job: int) -> float:
    """The seconds that the job's lock has left in Redis."""
    return float(stage.redis.pttl(stage.lock_key(f"job:{job}"))) / 1000


@on_both_brokers
def test_a_second_click_is_refused_until_the_job_has_ended(
    make_stage: MakeStage, broker: str
) -> None:
    stage = make_stage(broker)
    job, gate = stage.job(), stage.gate()
    # Given a click whose job waits in the queue
    fence = click(stage, job, [{"gate": str(gate)}])
    assert click(stage, job) == "409"
    # When the job runs, under the lease of the click
    stage.worker()
    assert str(stage.started(job).fence) == fence
    assert click(stage, job) == "409"
    # Then clicks are refused until it has ended, and no longer
    gate.touch()
    stage.completed(job)
    stage.assert_settled()
    stage.assert_done_once(job)
    assert int(click(stage, job)) > int(fence)


@pytest.mark.nightly
def test_killed_before_it_detaches_the_lock_is_free_at_once(stage: Stage) -> None:
    job = stage.job()
    killed(stage, f'with lock("job:{job}", ttl={LONG_SECONDS}): die()')
    assert left(stage, job) > HANDLE_SECONDS
    assert click(stage, job) != "409"


@pytest.mark.parametrize(
    "step",
    [
        f"lease.detach(ttl={HANDLE_SECONDS}); die()",
        "Task.apply_async = die; skip.apply_async([{job}], lease=lease)",
    ],
    ids=["after it detached", "before it sends"],
)
@pytest.mark.nightly
def test_killed_before_the_message_is_sent_the_lock_lasts_as_long_as_the_handle(
    stage: Stage, step: str
) -> None:
    job = stage.job()
    killed(
        stage,
        f'lease = locks.acquire("job:{job}", ttl={HANDLE_SECONDS})\n' + step.format(job=job),
    )
    assert left(stage, job) <= HANDLE_SECONDS
    until(lambda: not stage.held(), "the handle is over", 60)
    assert stage.queued() == 0
    assert click(stage, job) != "409"


@pytest.mark.nightly
def test_killed_before_the_run_adopts_the_next_delivery_does(make_stage: MakeStage) -> None:
    stage = make_stage(visibility=2)
    worker, busy, job = stage.worker(), stage.job(), stage.job()
    stage.send("skip", busy, [{"seconds": LONG_SECONDS}, {"seconds": 0}])
    stage.watch(stage.started(busy).pid)
    fence = click(stage, job, ttl=LONG_SECONDS)
    stage.kill(worker.pid)
    stage.worker(concurrency=2)
    assert str(stage.started(job).fence) == fence
    stage.assert_settled(60)
    stage.assert_done_once(job)


@on_both_brokers
def test_killed_after_the_run_adopted_the_lock_is_free_at_once(
    make_stage: MakeStage, broker: str
) -> None:
    """The message comes again, and its handle is spent."""
    stage = make_stage(broker)
    stage.worker()
    job = stage.job()
    fence = click(stage, job, [{"seconds": LONG_SECONDS}, {"seconds": 0.1}], ttl=LONG_SECONDS)
    first = stage.started(job)
    assert str(first.fence) == fence
    stage.kill(first.pid)
    again = stage.started(job, 2)
    assert again.fence > first.fence
    stage.completed(job)
    stage.assert_settled()
    stage.assert_done_once(job)


@on_both_brokers
@pytest.mark.parametrize("how", ["revoked", "expired"])
@pytest.mark.nightly
def test_a_message_that_does_not_run_ends_the_lease(
    make_stage: MakeStage, broker: str, how: str
) -> None:
    """RabbitMQ drops an expired message, of which no worker hears."""
    stage = make_stage(broker)
    stage.worker()
    busy, gate, job = stage.job(), stage.gate(), stage.job()
    stage.send("skip", busy, [{"gate": str(gate)}])
    stage.started(busy)
    expires = 0.5
    options = {"expires": expires} if how == "expired" else {"task_id": f"revoked-{job}"}
    click(stage, job, ttl=LONG_SECONDS, **options)
    if how == "expired":
        time.sleep(expires)  # The worker is not free before: it would run the job in time.
    if how == "revoked":
        assert left(stage, job) > LONG_SECONDS / 2
        stage.client.control.revoke(f"revoked-{job}", reply=True, timeout=10)
    gate.touch()
    stage.assert_settled()
    assert stage.ledger.runs(job=job) == []
    assert click(stage, job) != "409"
