"""``on_conflict="replace"`` with real workers, whose children are killed."""

from __future__ import annotations

import random
import time

import pytest

from tests.nights import by_day
from tests.seeds import drawn_seed
from tests.stage.fixtures import MakeStage
from tests.stage.scripted import lives
from tests.stage.stage import Stage
from tests.steps import Meanwhile
from tests.waiting import until

pytestmark = pytest.mark.slow

KEYS = 3
PAUSE_SECONDS = 0.26
SENDER = """
import random, time
from tests.stage.tasks import replaced
chance = random.Random({seed})
sent = [(job, dict(seconds=0.1, times=600, check=True)) for job in {jobs}]
for _ in range({calls}):
    step = dict(seconds=0.05, times=chance.randrange(1, 30), check=chance.random() < 0.5)
    sent.append((chance.choice({jobs}), step))
for job, step in sent:
    print(job, replaced.delay(job, [step]).id, flush=True)
    time.sleep(chance.uniform(0, 2 * {pause}))
"""


def kill_some(stage: Stage, chance: random.Random, kills: int) -> None:
    """Kill children at work, one after the other."""

    def victims() -> list[int]:
        return [run.start.pid for run in stage.ledger.runs() if lives(run)]

    for _ in range(kills):
        time.sleep(chance.uniform(0.2, 4 * PAUSE_SECONDS))
        stage.kill(chance.choice(until(victims, "a body at work")))


@pytest.mark.parametrize(
    ("broker", "calls", "kills"),
    by_day(("redis", 27, 3), ("redis", 93, 9), ("rabbitmq", 93, 9)),
)
def test_whoever_dies_no_two_run_at_once_and_the_call_that_was_sent_last_ends_last(
    make_stage: MakeStage, broker: str, calls: int, kills: int
) -> None:
    # Given calls that keep coming for some keys, the first of each for a body of a minute
    seed = drawn_seed()
    stage = make_stage(broker)
    stage.pair(concurrency=2)
    jobs = [stage.job() for _ in range(KEYS)]
    source = SENDER.format(seed=seed, jobs=jobs, calls=calls, pause=PAUSE_SECONDS)
    sender = Meanwhile(lambda: stage.script(source))

    # And children that are killed at work
    kill_some(stage, random.Random(seed), kills)
    sent = [line.split() for line in sender.result().splitlines()]
    stage.assert_settled()

    # I expect that no two of a key ran at once, and that the last that ended is the last one sent
    for job in jobs:
        ids = [task_id for key, task_id in sent if key == str(job)]
        assert stage.ledger.overlaps(job=job) == []
        assert stage.ledger.runs(job=job)[-1].start.task_id == ids[-1]
        assert stage.ledger.entries("end", job=job)[-1].task_id == ids[-1]
        # And each to have its result, or the marker
        results = [stage.client.AsyncResult(each).get(timeout=60) for each in ids]
        assert results[-1] == f"done:{job}"
        skipped = [each for each in results if each != f"done:{job}"]
        assert {each["reason"] for each in skipped} == {"replaced"}
