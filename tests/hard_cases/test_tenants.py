"""Case 36: the cache's keys depend on the tenant of the thread."""

from __future__ import annotations

from typing import Any

import pytest

from tests.stage.stage import Stage
from tests.tenants import MAKE_KEY

pytestmark = pytest.mark.slow

TTL = 5.0
MORE_SECONDS = 1.6 * TTL


def send(stage: Stage, tenant: str, job: int, *script: dict[str, Any]) -> Any:
    return stage.send("of_tenant", job, script, headers={"tenant": tenant})


@pytest.mark.stage(ttl=TTL, visibility=TTL)
def test_36_a_tenants_job_keeps_its_lease_and_leaves_nothing(stage: Stage) -> None:
    # Given a job that lasts longer than its lease, and than the broker waits for it: its message is
    # delivered again while it runs
    stage.environment["STAGE_KEY_FUNCTION"] = MAKE_KEY
    stage.pair(concurrency=2)
    job = stage.job()
    mine = send(stage, "acme", job, {"seconds": MORE_SECONDS, "check": True})
    stage.started(job)

    # I expect the job of that name of another tenant to run beside it, and a second message to be
    # skipped
    other = send(stage, "beta", job)
    again = send(stage, "acme", job)
    assert other.get(timeout=60) == f"done:{job}"
    assert again.get(timeout=60)["holder"] == mine.id

    # And the job to run once, and to leave nothing
    assert mine.get(timeout=60) == f"done:{job}"
    assert len(stage.ledger.entries("start", job=job, task_id=mine.id)) == 1
    stage.assert_settled()
    assert list(stage.redis.scan_iter(match="*lock index")) == []


def test_36_a_tenants_job_whose_child_is_killed_runs_again_at_once(stage: Stage) -> None:
    stage.environment["STAGE_KEY_FUNCTION"] = MAKE_KEY
    stage.worker()
    job = stage.job()
    sent = send(stage, "acme", job, {"seconds": 60}, {})
    killed = stage.kill(stage.started(job).pid)
    # The main process clears the lease of the dead child: at once, and not when it would end
    again = stage.started(job, 2)
    assert again.at - killed < 10
    assert sent.get(timeout=60) == f"done:{job}"
    assert "was cleared by the worker" in stage.workers[0].text()
    stage.assert_settled()
    assert list(stage.redis.scan_iter(match="*lock index")) == []
