"""What the store of the locks does to jobs, while it answers: case 43."""

from __future__ import annotations

import pytest

from django_tasklock import InvalidLockConfig
from tests.acceptance.hard_cases.conftest import MakeStage

pytestmark = pytest.mark.slow


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
