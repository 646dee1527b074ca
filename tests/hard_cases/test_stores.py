"""What the store of the locks does to jobs, while it answers: cases 39 and 43."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from django_tasklock import InvalidLockConfig
from tests.hard_cases.conftest import MakeStage
from tests.hard_cases.stage import Stage
from tests.waiting import until

pytestmark = pytest.mark.slow
TTL_SECONDS = 6.0


@contextmanager
def locks_full(stage: Stage) -> Iterator[None]:
    """The Redis of the locks takes nothing that needs memory."""
    stage.redis.config_set("maxmemory-policy", "noeviction")
    stage.redis.config_set("maxmemory", 1)
    try:
        yield
    finally:
        stage.redis.config_set("maxmemory", 0)


def test_39_a_job_goes_on_beside_a_full_server_and_those_that_come_run_later(
    make_stage: MakeStage,
) -> None:
    """Its lease is renewed and released; the others are neither skipped nor lost."""
    stage = make_stage(ttl=TTL_SECONDS)
    stage.worker(concurrency=2)
    job, gate, later = stage.job(), stage.gate(), stage.job()
    result = stage.send("guarded", job, [{"gate": str(gate), "check": True}])
    stage.started(job)
    key = stage.lock_key(f"job:{job}")
    with locks_full(stage):
        until(lambda: 0 < stage.redis.pttl(key) < TTL_SECONDS * 1000 - 1500, "a renewal is due", 20)
        until(lambda: stage.redis.pttl(key) > TTL_SECONDS * 1000 - 1000, "renewed", 20)
        waits = stage.send("guarded", later)
        until(lambda: len(stage.ledger.entries("prerun", task_id=waits.id)) >= 2, "two tries", 40)
        gate.touch()
        assert result.get(timeout=60) == f"done:{job}"
        until(lambda: not stage.held(), "released", 20)
    assert waits.get(timeout=60) == f"done:{later}"
    stage.assert_settled()
    stage.assert_done_once(job)
    stage.assert_done_once(later)


def test_43_a_job_on_a_cache_that_keeps_nothing_fails_before_its_work(
    make_stage: MakeStage,
) -> None:
    """Workers run no system checks. The job is no success, and it is not lost either."""
    stage = make_stage(ttl=6)
    stage.worker(environment={"HARD_CASES_CACHE": "django.core.cache.backends.dummy.DummyCache"})
    job = stage.job()
    with pytest.raises(InvalidLockConfig, match="a DummyCache: it grants every lock"):
        stage.send("guarded", job).get(timeout=60)
    assert stage.ledger.runs(job=job) == []
    assert stage.row(job)[0] == "new"
    stage.assert_settled()
