"""Every store, by a history of processes that use it: see `tests.stores.histories`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore
from django_tasklock.stores.cache import CacheStore
from django_tasklock.stores.memory import MemoryStore
from tests.nightly.chaos.history import Event
from tests.nightly.chaos.story import Story
from tests.quorum import Five
from tests.seeds import drawn_seed
from tests.store_cases import NIGHTLY_ONLY, STORE_CASES
from tests.stores.histories import SECONDS, counts, findings, played, too_few
from tests.waiting import PATIENCE

DAY_SECONDS, NIGHT_SECONDS = 1.0, 60.0
EACH = (
    "redis-pickle", "memcached", "database-store-sqlite", "database-store-postgres",
    "database-store-mariadb", "redis-cluster", "zookeeper", "quorum", "memory",
)  # fmt: skip
"""of each kind of store, one"""


def cases(names: tuple[str, ...]) -> Iterator[ParameterSet]:
    for case in STORE_CASES:
        param = case if isinstance(case, ParameterSet) else pytest.param(case)
        if (name := param.values[0].id) in names:  # type: ignore[union-attr]
            yield pytest.param(*param.values, marks=param.marks, id=name)


BY_DAY, AT_NIGHT = [*cases(tuple({*EACH} - NIGHTLY_ONLY))], [*cases(EACH)]


@pytest.mark.slow
@pytest.mark.parametrize("store", BY_DAY, indirect=True)
def test_no_two_hold_one_lock(store: BaseStore, tmp_path: Path) -> None:
    # Given processes that take, extend, release and clear locks, and are killed meanwhile, until
    # enough has happened, I expect nothing in what they have seen that must not be
    check(store, DAY_SECONDS, tmp_path)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", AT_NIGHT, indirect=True)
def test_no_two_hold_one_lock_at_night(store: BaseStore, tmp_path: Path) -> None:
    check(store, NIGHT_SECONDS, tmp_path)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_two_hold_one_lock_at_night_while_members_of_a_quorum_stand_still(
    five: Five, tmp_path: Path
) -> None:
    def pause(chance: Random) -> None:
        if chance.random() < 0.3:
            number = chance.randrange(5)
            five.harm("paused", number)
            time.sleep(chance.uniform(0.1, 2.0))
            five.mend("paused", number)

    check(stores["default"], NIGHT_SECONDS, tmp_path, pause)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_two_hold_one_lock_at_night_while_members_of_zookeeper_stand_still_and_die(
    use_zookeeper: Callable[..., BaseStore], tmp_path: Path
) -> None:
    from tests.zookeepers import ensemble

    with ensemble() as servers:
        store = use_zookeeper(",".join(server.hosts for server in servers), TIMEOUT=PATIENCE)

        def harm(chance: Random) -> None:
            if chance.random() < 0.3:
                server = chance.choice(servers)
                kills = chance.random() < 0.3
                begin, end = (
                    (server.kill, server.restart) if kills else (server.pause, server.resume)
                )
                begin()
                time.sleep(chance.uniform(0.1, 2.0))
                end()

        check(store, NIGHT_SECONDS, tmp_path, harm)


def check(store: BaseStore, seconds: float, folder: Path, *disturb: Any) -> None:
    story = played(store, SECONDS or seconds, folder, drawn_seed(), *disturb)
    found, few = findings(story, store), too_few(story.events)
    counted = ", ".join(f"{count} {what}" for what, count in counts(story.events).items())
    print(f"{type(store).__name__}: {counted}; {len(found)} findings")
    assert not found, "\n".join(f"{each.rule}: {each.text}" for each in found[:10])
    assert not few, f"too little happened to find anything: {few}"


def call(
    call: str, begin: float, end: float, fence: int, *, slow: float = 0.0, said: bool = True,
    name: str = "plain",
) -> list[Event]:  # fmt: skip
    """One that gets the lock, whose release begins at the end and takes so many seconds."""

    def event(at: float, kind: str, **says: Any) -> Event:
        return Event(at, kind, call.partition("/")[0], call, name, says)

    return [
        event(begin - 0.1, "asked", wait=0, ttl=9.0),
        event(begin, "granted", token=call, fence=fence, end=begin + 9),
        event(end, "held", end=begin + 9),
        event(end, "releasing"),
        event(end + slow + 0.01, "released", said=said, since=end, until=end + slow),
    ]


def look(at: float, *, locked: bool) -> list[Event]:
    return [Event(at, "looked", "2", "2/1", "plain", {"since": at - 0.1, "locked": locked})]


@pytest.mark.parametrize(
    ("store", "events", "rules"),
    [
        (MemoryStore, call("1/1", 2, 3, 5) + call("2/1", 4, 5, 6) + look(2.5, locked=True), set()),
        (MemoryStore, call("1/1", 2, 3, 5) + look(3.5, locked=False), set()),
        (MemoryStore, call("1/1", 2, 3, 5) + call("2/1", 2.5, 4, 6), {"two holders"}),
        (MemoryStore, call("1/1", 2, 3, 5) + call("2/1", 4, 5, 4), {"falling fences"}),
        (MemoryStore, call("1/1", 2, 3, 5) + look(2.5, locked=False), {"not seen"}),
        (MemoryStore, call("1/1", 2, 3, 5, said=False), {"lost"}),
        (MemoryStore, call("1/1", 2, 3, 5) + call("2/1", 1, 4, 4, name="plain#1"), set()),
        (MemoryStore, call("1/1", 2, 3, 5) + call("2/1", 2.05, 4, 6, name="plain#1"), {"let in"}),
        (CacheStore, call("1/1", 2, 3, 0) + call("2/1", 2.05, 4, 0, name="plain#1"), set()),
        (CacheStore, call("1/1", 2, 3, 0) + call("2/1", 2.2, 4, 0, name="plain#1"), {"let in"}),
        (CacheStore, call("1/1", 2, 3, 5) + call("2/1", 4, 5, 4), set()),
        (CacheStore, call("1/1", 2, 3, 5) + call("2/1", 2.5, 4, 6), {"two holders"}),
        # A release that took so long has hit the lease of the next holder.
        (
            CacheStore,
            call("1/1", 1, 2, 0, slow=1) + call("2/1", 2.1, 4, 0) + call("3/1", 3, 5, 0),
            set(),
        ),
    ],
)
def test_a_history_breaks_what_it_should(
    store: type[BaseStore], events: list[Event], rules: set[str]
) -> None:
    story = Story(sorted(events, key=lambda event: event.at))
    assert {each.rule for each in findings(story, store)} == rules
