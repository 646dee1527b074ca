"""Every store, by a history of processes that use it: see `tests.stores.histories`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from django_tasklock.stores.base import BaseStore
from tests.conftest import UseZooKeeper
from tests.seeds import drawn_seed
from tests.store_cases import NIGHTLY_ONLY, STORE_CASES
from tests.stores.histories import SECONDS, counts, findings, played
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

DAY_SECONDS, NIGHT_SECONDS = 5.0, 60.0
EACH = (
    "redis-pickle", "memcached", "database-store-sqlite", "database-store-postgres",
    "database-store-mariadb", "redis-cluster", "zookeeper", "quorum", "memory",
)  # fmt: skip
"""of each kind of store, one"""
LEAST = {"granted": 20, "ran out": 4, "permits": 4, "looked": 20}
"""what there must be of each in a history of five seconds"""


def cases(names: tuple[str, ...]) -> Iterator[ParameterSet]:
    for case in STORE_CASES:
        param = case if isinstance(case, ParameterSet) else pytest.param(case)
        if (name := param.values[0].id) in names:  # type: ignore[union-attr]
            yield pytest.param(*param.values, marks=param.marks, id=name)


BY_DAY, AT_NIGHT = [*cases(tuple({*EACH} - NIGHTLY_ONLY))], [*cases(EACH)]


@pytest.mark.parametrize("store", BY_DAY, indirect=True)
def test_no_two_hold_one_lock(store: BaseStore, tmp_path: Path) -> None:
    check(store, DAY_SECONDS, tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", AT_NIGHT, indirect=True)
def test_no_two_hold_one_lock_at_night(store: BaseStore, tmp_path: Path) -> None:
    check(store, NIGHT_SECONDS, tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_no_two_hold_one_lock_at_night_while_members_of_zookeeper_stand_still(
    use_zookeeper: UseZooKeeper, tmp_path: Path
) -> None:
    from tests.zookeepers import ensemble

    with ensemble() as servers:
        store = use_zookeeper(",".join(server.hosts for server in servers), TIMEOUT=PATIENCE)

        def pause(chance: Random) -> None:
            if chance.random() < 0.3:
                server = chance.choice(servers)
                server.pause()
                time.sleep(chance.uniform(0.1, 2.0))
                server.resume()

        check(store, NIGHT_SECONDS, tmp_path, pause)


def check(store: BaseStore, seconds: float, folder: Path, *disturb: Any) -> None:
    seconds = SECONDS or seconds
    story = played(store, seconds, folder, drawn_seed(), *disturb)
    found, counted = findings(story, store), counts(story)
    print(f"{seconds:g} s: {dict(counted)}; findings: {len(found)}")
    assert not found, "\n".join(f"{each.rule}: {each.text}" for each in found[:10])
    few = {what: counted[what] for what, least in LEAST.items() if counted[what] < least}
    assert not few, f"too little happened to find anything: {few}"
