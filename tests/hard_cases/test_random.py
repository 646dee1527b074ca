"""Random kills, stops and cuts: afterwards every row is done, exactly once.

``HARD_CASES_ROUNDS=200`` plays more rounds than the usual 10; ``SEED=…`` plays those of another run
again, and ``-k "round-17"`` one of them.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.hard_cases.conftest import MakeStage
from tests.hard_cases.disturb import Disturber
from tests.seeds import drawn_seed

ROUNDS = int(os.environ.get("HARD_CASES_ROUNDS", "10"))
ROWS = 6
TTL_SECONDS = 5.0

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(240)]


@pytest.mark.parametrize("number", range(ROUNDS), ids=lambda number: f"round-{number}")
def test_whatever_is_killed_stopped_or_cut_every_row_is_done_once(
    make_stage: MakeStage, number: int
) -> None:
    """No row stuck, no row done twice, no lock left, no message left."""
    chance = random.Random(f"{drawn_seed()}-{number}")
    stage = make_stage(("redis", "rabbitmq")[number % 2], ttl=TTL_SECONDS, visibility=3)
    stage.pair(concurrency=2)
    sent: dict[str, int] = {}
    for job in [stage.job() for _ in range(ROWS)]:
        script = [{"seconds": round(chance.uniform(0.4, 1.5), 2), "check": True}]
        for _ in range(chance.choice([1, 1, 2, 3])):
            task = chance.choice(["guarded", "guarded", "guarded_retry"])
            sent[stage.send(task, job, script).id] = job
    disturber = Disturber(stage, chance, sent)
    for _ in range(4):
        disturber.strike()
    disturber.calm()
    disturber.wait_done(within=90)
    stage.assert_settled(60)
    for job in disturber.jobs:
        disturber.assert_done_once(job)
