"""Tasks whose lock cools for an hour, with real workers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.hard_cases.conftest import on_both_brokers
from tests.hard_cases.stage import Stage

pytestmark = pytest.mark.slow
OnStage = Callable[..., Stage]
LONG_SECONDS = 60.0  # seconds that a body would run if it were not killed


@on_both_brokers
def test_a_killed_run_is_done_again_at_once_and_what_comes_later_is_skipped(
    on_stage: OnStage, broker: str
) -> None:
    stage = on_stage(broker)
    stage.worker()
    job = stage.job()
    result = stage.send("cooled", job, [{"seconds": LONG_SECONDS}, {"seconds": 0.2}])
    stage.kill(stage.started(job).pid)
    assert result.get(timeout=LONG_SECONDS) == f"done:{job}"
    for late in [stage.send("cooled", job, [{}]) for _ in range(5)]:
        marker = late.get(timeout=LONG_SECONDS)
        assert (marker["reason"], marker["holder"]) == ("cooling_down", result.id)
    assert stage.ledger.completions(job=job) == 1
    assert stage.ledger.overlaps(job=job) == []
