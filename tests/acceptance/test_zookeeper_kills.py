"""Processes that contend for one lock in ZooKeeper while they are killed at random."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import contenders
from tests.conftest import UseZooKeeper
from tests.storm import storm

SESSION_SECONDS = 12.0
"""a process that lives must be heard for so long, also on a busy machine"""


@pytest.mark.parametrize(
    ("processes", "rounds", "kills", "asking"),
    [
        (8, 20, 12, ""),
        (8, 20, 12, "yes"),
        pytest.param(8, 100, 30, "", marks=pytest.mark.slow),
        pytest.param(8, 100, 30, "yes", marks=pytest.mark.slow),
    ],
)
def test_no_two_holders_overlap_and_the_dead_hold_nothing(
    use_zookeeper: UseZooKeeper,
    tmp_path: Path,
    processes: int,
    rounds: int,
    kills: int,
    asking: str,
) -> None:
    use_zookeeper(SESSION_TIMEOUT=SESSION_SECONDS)
    assert storm(tmp_path, processes, rounds, kills, {contenders.ASKING: asking}).killed


@pytest.mark.slow
def test_the_dead_of_elsewhere_hold_nothing_after_their_sessions(
    use_zookeeper: UseZooKeeper, tmp_path: Path
) -> None:
    """As on other machines, where nobody can look whether a process lives."""
    use_zookeeper(SESSION_TIMEOUT=4.0, TAKEOVER=False)
    assert storm(tmp_path, 8, 40, 10, {contenders.ASKING: ""}).killed
