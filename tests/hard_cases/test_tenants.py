"""Case 36: the cache's keys depend on the tenant of the thread."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hard_cases.conftest import MakeStage
from tests.hard_cases.stage import Stage
from tests.tenants import MAKE_KEY

pytestmark = pytest.mark.slow

TTL = 5.0
MORE_SECONDS = 1.6 * TTL
LONG_SECONDS = 60


@pytest.fixture
def make_tenants(make_stage: MakeStage) -> MakeStage:
    """Makes a stage on which each tenant has its own keys."""

    def make(**options: Any) -> Stage:
        stage = make_stage(**options)
        stage.environment["HARD_CASES_KEY_FUNCTION"] = MAKE_KEY
        return stage

    return make


def send(stage: Stage, tenant: str, job: int, *script: dict[str, Any]) -> Any:
    return stage.send("of_tenant", job, script, headers={"tenant": tenant})


def assert_nothing_is_left(stage: Stage) -> None:
    """Neither a lock of any tenant, nor a name in an index."""
    stage.assert_settled()
    assert list(stage.redis.scan_iter(match="*lock index")) == []


def test_36_a_tenants_job_keeps_its_lease_and_leaves_nothing(make_tenants: MakeStage) -> None:
    # Given a job that lasts longer than its lease, and a broker that does not wait for
    # it: the message is delivered again while it runs
    stage = make_tenants(ttl=TTL, visibility=TTL)
    stage.pair(concurrency=2)
    job = stage.job()
    mine = send(stage, "acme", job, {"seconds": MORE_SECONDS, "check": True})
    stage.started(job)
    # When another tenant has a job of that name, and the first tenant sends it once more
    other = send(stage, "beta", job)
    again = send(stage, "acme", job)
    # Then the other tenant's runs beside it, and the second message is skipped
    assert other.get(timeout=60) == f"done:{job}"
    assert again.get(timeout=60)["holder"] == mine.id
    # And the job runs once
    assert mine.get(timeout=60) == f"done:{job}"
    assert len(stage.ledger.entries("start", job=job, task_id=mine.id)) == 1
    assert_nothing_is_left(stage)


def test_36_a_tenants_job_whose_child_is_killed_runs_again_at_once(
    make_tenants: MakeStage,
) -> None:
    stage = make_tenants()
    stage.worker()
    job = stage.job()
    sent = send(stage, "acme", job, {"seconds": LONG_SECONDS}, {"seconds": 0})
    killed = stage.kill(stage.started(job).pid)
    # The main process clears the lease of the dead child: at once, and not when it would end
    again = stage.started(job, 2)
    assert again.at - killed < 10
    assert sent.get(timeout=60) == f"done:{job}"
    assert "was cleared by the worker" in stage.workers[0].text()
    assert_nothing_is_left(stage)


@pytest.mark.nightly
def test_36_a_tenants_block_is_renewed_and_released_in_another_thread(
    make_tenants: MakeStage,
) -> None:
    stage = make_tenants()
    said = stage.script(f"""
import threading, time
import django; django.setup()
from django_tasklock import lock, locks
from tests.tenants import tenant
with tenant("acme"):
    with lock("block", ttl={TTL}) as block:
        lease = locks.acquire("released", ttl={TTL}, renew=True)
        time.sleep({MORE_SECONDS})
        print(block.held, lease.held, locks.is_locked("block"), locks.is_locked("released"))
releasing = threading.Thread(target=lambda: print(lease.release()))
releasing.start(); releasing.join()
""")
    assert said.split() == ["True"] * 5
    assert stage.held() == []
