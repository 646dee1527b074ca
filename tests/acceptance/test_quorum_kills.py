"""Processes that contend for one lock of a quorum while they, and its members, are killed."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from django_tasklock import locks
from tests import contenders
from tests.agent import Agent
from tests.conftest import UseCaches, use_quorum
from tests.quorum import Five
from tests.steps import taken
from tests.storm import storm


class Trouble(threading.Thread):
    """Harms two members at a time, until `stop`; at last it kills two, which come back empty.

    A member that came back empty does not count any more, so no other one may be harmed then.
    """

    def __init__(self, five: Five, seed: int) -> None:
        super().__init__(daemon=True)
        self._five, self._chance = five, random.Random(seed)
        self._over = threading.Event()
        self.rounds = 0
        self.start()

    def run(self) -> None:
        while not self._over.wait(self._chance.uniform(0.05, 0.5)):
            victims = self._chance.sample(range(5), 2)
            faults = [self._chance.choice(["paused", "cut off"]) for _ in victims]
            for fault, number in zip(faults, victims, strict=True):
                self._five.harm(fault, number)
            self._over.wait(self._chance.uniform(0.1, 1.5))
            for fault, number in zip(faults, victims, strict=True):
                self._five.mend(fault, number)
            self.rounds += 1
            if self.rounds == 12:
                for number in self._chance.sample(range(5), 2):
                    self._five.harm("killed", number)
                    time.sleep(self._chance.uniform(0, 1))
                    self._five.mend("killed", number)
                return

    def stop(self) -> None:
        self._over.set()
        self.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "rounds", "kills", "asking"), [(8, 25, 8, ""), (8, 25, 8, "yes")]
)
def test_no_two_holders_overlap_and_fences_grow(
    five: Five,
    tmp_path: Path,
    use_caches: UseCaches,
    processes: int,
    rounds: int,
    kills: int,
    asking: str,
) -> None:
    # What counts is that their data began long ago, or that of the emptied ones would not be new.
    use_quorum(five, use_caches, LONGEST_TTL=300.0, PERSISTENT=list("abcde"), MEMBER_TIMEOUT=0.5)
    five.plant_age(1000.0)
    seed = random.randrange(2**32)
    print(f"seed of the trouble {seed}")
    trouble = Trouble(five, seed)
    try:
        happened = storm(
            tmp_path,
            processes,
            rounds,
            kills,
            {contenders.ASKING: asking, contenders.TOLERANT: "yes"},
        )
    finally:
        trouble.stop()
    print(f"{trouble.rounds} times two members were harmed")
    assert happened.killed
    assert trouble.rounds > 0


@pytest.mark.slow
def test_the_lock_of_a_killed_process_is_taken_over_at_once(five: Five) -> None:
    with Agent() as other:
        held = other.ask("acquire", name="video:1", ttl=60.0)
        assert locks.acquire("video:1") is None
        five.harm("paused", 1)
        five.harm("killed", 3)
        other.kill()
        lease = taken("video:1")
        assert lease.fence is not None
        assert lease.fence > held["fence"]
        assert lease.release()
