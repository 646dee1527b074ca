"""A long search is kept for some seconds, for all who ask the same: of thousands of locks."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from django_tasklock import StoreUnavailable, locks
from django_tasklock._values.liveness import Liveness
from django_tasklock._values.lock_info import LockInfo
from django_tasklock._values.ordering import ORDERS, in_order
from django_tasklock._values.owner import Owner
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.operators import kept_search as module
from django_tasklock.operators.kept_search import FoundAt, kept_search, question
from django_tasklock.stores.base import Note
from django_tasklock.stores.criteria import Criteria
from django_tasklock.stores.search import Found
from tests.clusters import Cluster
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.steps import Traffic
from tests.store_cases import own_prefix

LOCKS = 2000
TASKS = ["videos.run", "reports.build", None]


@pytest.fixture(autouse=True)
def all_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(module, "SHORTEST_KEPT_SECONDS", 60.0)


@pytest.fixture(params=["redis", "cluster"])
def large(request: pytest.FixtureRequest, use_caches: UseCaches, use_redis: UseRedis) -> None:
    """A store with thousands of locks."""
    if request.param == "redis":
        use_redis()
    else:
        cluster: Cluster = request.getfixturevalue("redis_cluster")
        use_caches({}, {"default": cluster.settings() | {"KEY_PREFIX": own_prefix()}})
    hold(LOCKS)


def hold(count: int) -> None:
    chance = random.Random(1)
    for number in range(count):
        owner = owner_record(chance.choice(TASKS), f"id-{number}")
        if number % 50 == 0:
            owner |= {"start": 1}
        hold_one(f"video:{number}" if number % 3 else f"film:{number}", 600 + number, owner)


def hold_one(name: str, ttl: float, owner: dict[str, Any]) -> None:
    locks.store.acquire(name, new_token(), ttl, owner)


def find(
    criteria: Criteria, order: str = "ttl", reach: int = 100, ahead: int = 1000
) -> tuple[FoundAt, int]:
    """What was found, and how often the store was searched for it."""
    looks: list[int] = []
    liveness = Liveness()

    def look(most: int) -> Found:
        looks.append(most)
        return locks.store.search(criteria, order, most)

    def matches(info: LockInfo) -> bool:
        return criteria.matches(info, liveness)

    asked = question(criteria, order, False)
    return kept_search(locks.store, asked, look, matches, reach, ahead), len(looks)


def names(found: FoundAt) -> list[str]:
    return [info.name for info in found.infos]


def test_a_kept_search_finds_what_a_look_at_every_lock_finds(large: None) -> None:
    everything = list(locks.store.walk())
    liveness = Liveness()
    for order in ORDERS:
        for criteria in (
            Criteria(),
            Criteria(words=("film",)),
            Criteria(words=("id-77",)),
            Criteria(prefix="video:1", task="videos.run"),
            Criteria(gone=True),
            Criteria(host="nowhere"),
        ):
            matching = [info for info in everything if criteria.matches(info, liveness)]
            expected = [info.name for info in in_order(matching, order)]
            first, looks = find(criteria, order)
            assert (looks, first.at) == (1, None)
            assert names(first) == expected[:1100], (order, criteria)
            again, looks = find(criteria, order)
            # I expect that the store was not searched again, and that this is said
            assert (looks, again.at is not None) == (0, True)
            assert names(again) == names(first)
            assert again.more == first.more == (len(expected) > 1100)


def test_it_costs_what_a_page_costs_and_not_what_the_search_cost(
    use_redis: UseRedis, own_redis_server: RedisServer
) -> None:
    use_redis(own_redis_server.url)
    hold(200)
    rare = Criteria(words=("id-77",))

    def cost(criteria: Criteria, *asked: Any) -> tuple[int, dict[str, int]]:
        order = asked[0] if asked else "ttl"
        locks.store.set_note(Note(question(criteria, order, False), "", 60))
        assert [find(criteria, *asked)[1] for _ in range(2)] == [1, 0]
        traffic = Traffic(own_redis_server)
        assert find(criteria, *asked)[1] == 0
        return traffic.scripts(), traffic.commands()

    cost(rare)  # scripts are loaded
    few = cost(rare), cost(Criteria(), "-waiters", 100, 0)
    for number in range(LOCKS):
        hold_one(f"more:{number}", 60_000 + number, owner_record("other.run"))
    many = cost(rare), cost(Criteria(), "-waiters", 100, 0)
    # I expect a question for the names, and one for the locks
    assert [scripts for scripts, _ in many] == [2, 2]
    assert [commands for _, commands in many] == [commands for _, commands in few]


def test_locks_are_shown_as_they_are_now(large: None) -> None:
    criteria = Criteria(task="reports.build", words=("id-7",))
    first = find(criteria)[0].infos
    released, extended, taken = first[:3]
    locks.store.clear(released.name)
    assert extended.token
    locks.store.extend(extended.name, extended.token, 90_000)
    locks.store.clear(taken.name)
    hold_one(taken.name, 600, owner_record("videos.run", "id-7"))

    again, looks = find(criteria)
    # I expect neither what is gone, nor what is held by another task now
    assert looks == 0
    assert names(again) == [info.name for info in first if info not in (released, taken)]
    ttls = {info.name: info.ttl for info in again.infos}
    assert (ttls[extended.name] or 0) > 80_000


def test_the_pages_after_it_are_of_the_same_search_as_far_as_it_has_read(large: None) -> None:
    assert find(Criteria(), "name", 100, 0)[1] == 1
    second, looks = find(Criteria(), "name", 200, 0)
    assert (looks, len(second.infos), second.more) == (0, 200, True)
    # A page beyond what was kept is searched for, and the first one is of that search then
    assert find(Criteria(), "name", 1500, 0)[1] == 1
    assert find(Criteria(), "name", 1500, 0)[1] == 0
    assert find(Criteria(), "name", 100, 0)[1] == 0


def test_a_page_is_full_though_many_of_its_locks_have_gone(large: None) -> None:
    expected = names(find(Criteria(), "name", 100, 0)[0])
    others = names(find(Criteria(), "name", 300, 0)[0])[100:]
    for name in expected[10:]:
        locks.store.clear(name)
    again, looks = find(Criteria(), "name", 100, 0)
    assert looks == 0
    assert names(again) == expected[:10] + others[:90]
    # And if nearly all have, they are searched for
    for name in sorted(info.name for info in locks.store.walk())[:1200]:
        locks.store.clear(name)
    assert find(Criteria(), "name", 100, 0)[1] == 1


def test_a_short_search_is_not_kept(use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    use_redis()
    monkeypatch.setattr(module, "KEPT_AFTER_SECONDS", 60.0)
    hold_one("video:1", 60, owner_record())
    assert [find(Criteria())[1] for _ in range(3)] == [1, 1, 1]


def test_a_search_is_kept_in_proportion_to_its_time(
    use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_redis()
    monkeypatch.setattr(module, "SHORTEST_KEPT_SECONDS", 5.0)
    kept: list[Note] = []
    monkeypatch.setattr(locks.store, "set_note", kept.append)

    def look(_most: int) -> Found:
        time.sleep(0.5)
        return Found([], False)

    kept_search(locks.store, "search x", look, lambda _info: True, 100, 0)
    assert 10 <= kept[0].ttl <= 60


def test_whether_an_owner_is_gone_is_kept_for_this_machine_alone(
    use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = question(Criteria(gone=True), "ttl", False), question(Criteria(), "ttl", False)
    monkeypatch.setattr(Owner, "current", lambda: Owner(boot="another", pidns="one"))
    there = question(Criteria(gone=True), "ttl", False), question(Criteria(), "ttl", False)
    assert here[0] != there[0]
    assert here[1] == there[1]


def test_each_question_is_kept_by_itself() -> None:
    questions = {
        question(*asked)
        for asked in (
            (Criteria(), "ttl", False), (Criteria(), "-ttl", False), (Criteria(), "ttl", True),
            (Criteria(prefix="a"), "ttl", False), (Criteria(words=("a",)), "ttl", False),
            (Criteria(words=("a", "b")), "ttl", False), (Criteria(words=("\ud800",)), "ttl", False),
            (Criteria(task="a"), "ttl", False), (Criteria(host="a"), "ttl", False),
            (Criteria(within=60.0), "ttl", False), (Criteria(cooling=True), "ttl", False),
        )
    }  # fmt: skip
    assert len(questions) == 11


@pytest.mark.parametrize(
    "text",
    [
        "x", "[", "[" * 100_000, "null", "{}", "[1, false]", '[null, false, "a"]',
        '[NOW, 1, "a"]', '[NOW, false, ["a"]]', '[NOW, false, "a a"]', '[NOW, false, "a\\n"]',
        '[LATER, false, "a"]', '[EARLIER, false, "a"]', '[NaN, false, "a"]',
        f'[NOW, false, "{"x" * 201}"]', f'[NOW, false, "{" ".join(map(str, range(10_001)))}"]',
    ],
    ids=range(16),
)  # fmt: skip
def test_what_somebody_else_wrote_there_is_not_believed(use_redis: UseRedis, text: str) -> None:
    use_redis()
    hold_one("video:1", 60, owner_record())
    now = time.time()
    for word, at in (("NOW", now), ("LATER", now + 9_000), ("EARLIER", now - 9_000)):
        text = text.replace(word, str(at))
    locks.store.set_note(Note(question(Criteria(), "ttl", False), text, 60))
    found, looks = find(Criteria())
    assert (names(found), looks) == (["video:1"], 1)


def test_who_may_not_write_sees_what_was_found(
    use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_redis()
    hold_one("video:1", 60, owner_record())

    def refused(_note: Note) -> None:
        raise StoreUnavailable("default", "NOPERM")

    monkeypatch.setattr(locks.store, "set_note", refused)
    assert [names(find(Criteria())[0]) for _ in range(2)] == [["video:1"]] * 2
