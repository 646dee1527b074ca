"""Searches of thousands of locks on Redis, which the server helps with."""

from __future__ import annotations

import random
import sys
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest
import time_machine
from django.core.cache import cache
from hypothesis import given, settings
from hypothesis import strategies as st

from django_tasklock import locks
from django_tasklock._values.arguments import is_name
from django_tasklock._values.liveness import Liveness
from django_tasklock._values.lock_info import LockInfo
from django_tasklock._values.ordering import ORDERS, in_order
from django_tasklock._values.owner_record import COOLING, MARK, operator_record, owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores.criteria import Criteria
from django_tasklock.stores.redis import record_test, searching, walking
from tests.conftest import UseRedis

LOCKS = 3000
WINDOW = 170
TASKS = ["videos.transcode", "Videos.Publish", "отчёт.собрать", "straße.ſchön", "报告.生成", None]
HOSTS = ["worker-1", "RAPID-pid", "thread-pid-7", "K\u212aelvin"]
WORDS = [
    "video", "VIDEO:1", "77", "7", "report", "transcode", "publish", "отчёт", "ОТЧЁТ", "strasse",
    "schön", "SCHON", "报告", "生成", "worker", "rapid", "kkelvin", "id-12", "nobody", "é", "fi",
    '"', "\\", "4193", "41930", "алиса", "*", "x" * 300, "\ud800",
]  # fmt: skip
SERIALIZERS: dict[str, dict[str, Any]] = {
    "pickle": {},
    "pickle-2": {"PICKLE_VERSION": 2},
    "json": {"SERIALIZER": "django_redis.serializers.json.JSONSerializer"},
    "msgpack": {"SERIALIZER": "django_redis.serializers.msgpack.MSGPackSerializer"},
    "compressed": {"COMPRESSOR": "django_redis.compressors.zlib.ZlibCompressor"},
    "lz4": {"COMPRESSOR": "django_redis.compressors.lz4.Lz4Compressor"},
}


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "FIRST_NAMES", 7)
    monkeypatch.setattr(walking, "NAMES_PER_WINDOW", WINDOW)
    monkeypatch.setattr(walking, "RECORDS_PER_PIECE", 60)
    monkeypatch.setattr(searching, "RECORDS_PER_TEST", 110)
    monkeypatch.setattr(searching, "DESCRIBED_PER_SCRIPT", 90)


@pytest.fixture(params=SERIALIZERS)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == "lz4":
        pytest.importorskip("lz4")
    return SERIALIZERS[request.param]


def hold(count: int, seed: int = 0) -> None:
    """Locks of many kinds, in no order."""
    chance, store = random.Random(seed), locks.store
    for number in range(count):
        owner: dict[str, Any]
        kind = chance.randrange(40)
        if kind == 0:
            owner = operator_record("Алиса", "Migration ﬁnal")
        elif kind == 1:
            owner = {}
        else:
            owner = owner_record(chance.choice(TASKS), f"id-{number}")
            if chance.random() < 0.5:
                owner |= {"host": chance.choice(HOSTS), "pid": 41930 + chance.randrange(9)}
                owner["start"] = 1 + chance.randrange(4)
            if kind == 2:
                owner[MARK] = COOLING
        name = f"{chance.choice(['video', 'Report', 'ﬁlm', 'café'])}:{number}"
        # Minutes away from what `some_criteria` asks for: a search comes later than the list.
        soon, late = chance.choice([1000.0, 2500.0]), 4000 + 6000 * chance.random()
        ttl = chance.choice([soon, 5000.0 + number, late])
        store.acquire(name, new_token(), ttl, owner)


def naive(everything: list[LockInfo], criteria: Criteria, order: str) -> list[str]:
    liveness = Liveness()
    found = [info for info in everything if criteria.matches(info, liveness)]
    return [info.name for info in in_order(found, order)]


def some_criteria(chance: random.Random) -> Criteria:
    def perhaps(value: Any) -> Any:
        return value if chance.random() < 0.25 else None

    words = tuple(word.casefold() for word in chance.sample(WORDS, chance.randrange(3)))
    return Criteria(
        prefix=chance.choice(["", "", "video", "video:1", "ﬁ", "none"]),
        words=words,
        task=perhaps(chance.choice(TASKS)),
        host=perhaps(chance.choice(HOSTS)),
        within=perhaps(chance.choice([30.0, 1500.0, 3300.0])),
        gone=bool(perhaps(True)),
        cooling=bool(perhaps(True)),
    )


def names(infos: list[LockInfo]) -> list[str]:
    return [info.name for info in infos]


def test_each_search_finds_what_a_look_at_every_lock_finds(
    use_redis: UseRedis, options: dict[str, Any]
) -> None:
    use_redis(**options)
    hold(LOCKS // 5)
    store, chance = locks.store, random.Random(7)
    everything = store.list()
    assert names(list(store.walk())) == names(everything)
    for word in WORDS:
        criteria = Criteria(words=(word.casefold(),))
        assert names(store.search(criteria).infos) == naive(everything, criteria, "ttl"), word
        assert names(list(store.walk_matching(criteria))) == naive(everything, criteria, "ttl"), (
            word
        )
    for _ in range(120):
        criteria, order = some_criteria(chance), chance.choice(ORDERS)
        expected = naive(everything, criteria, order)
        most = chance.choice([None, 0, 1, 10, 5000])
        found = store.search(criteria, order, most)
        assert names(found.infos) == expected[:most], (criteria, order, most)
        assert found.more == (most is not None and len(expected) > most)


name_texts = st.text(
    st.characters(exclude_categories=["C", "Z"], exclude_characters=" ")
    | st.sampled_from("aAbBsSßẞﬁfFiIİkK\u212a:#"),
    min_size=1,
    max_size=6,
).filter(is_name)
record_texts = st.none() | st.text(max_size=6) | name_texts


@pytest.mark.parametrize("serializer", ["pickle", "json", "msgpack", "compressed"])
def test_names_and_records_of_all_kinds_are_found_as_by_a_look_at_each(
    use_redis: UseRedis, serializer: str
) -> None:
    use_redis(**SERIALIZERS[serializer])
    store = locks.store

    @settings(max_examples=40, deadline=None)
    @given(
        held=st.dictionaries(name_texts, st.tuples(record_texts, record_texts), max_size=12),
        word=name_texts,
        data=st.data(),
    )
    def check(held: dict[str, tuple[str | None, str | None]], word: str, data: Any) -> None:
        for info in store.list():
            store.clear(info.name)
        for number, (name, (task, task_id)) in enumerate(held.items()):
            store.acquire(name, new_token(), 900.0 + number, owner_record(task, task_id))
        everything = store.list()
        some = data.draw(st.sampled_from([*held, word]))
        criteria = Criteria(
            prefix=data.draw(st.sampled_from(["", some[:1], some])),
            words=data.draw(st.sampled_from([(), (word.casefold(),), (some[-2:].casefold(),)])),
            task=data.draw(st.sampled_from([None, None, *(task for task, _ in held.values())])),
        )
        for order in ORDERS:
            assert names(store.search(criteria, order).infos) == naive(everything, criteria, order)
        assert names(list(store.walk_matching(criteria))) == naive(everything, criteria, "ttl")

    check()


def test_thousands_of_locks_are_searched_in_every_order(use_redis: UseRedis) -> None:
    use_redis()
    hold(LOCKS)
    everything = locks.list()
    for order in ORDERS:
        for criteria in (Criteria(), Criteria(words=("video",)), Criteria(gone=True)):
            expected = naive(everything, criteria, order)
            found = locks.store.search(criteria, order, 100)
            assert names(found.infos) == expected[:100]
            assert found.more


def test_locks_with_waiters_come_last_and_backwards_first(use_redis: UseRedis) -> None:
    use_redis()
    hold(300)
    name = locks.list()[150].name
    waiter = locks.store.waiter(name, new_token(), 60.0, owner_record())
    assert waiter is not None
    waiter.ask()
    try:
        found = locks.store.search(Criteria(), "-waiters", 5).infos
        assert found[0].name == name
        assert [info.waiters for info in found] == [1, 0, 0, 0, 0]
        assert locks.store.search(Criteria(), "waiters").infos[-1].name == name
    finally:
        waiter.leave()


def test_what_is_waited_for_longest_comes_last_and_backwards_first(use_redis: UseRedis) -> None:
    use_redis()
    hold(300)
    found = locks.list()
    first, second = found[200].name, found[100].name
    waiters = []
    for name in (first, second, first):
        waiter = locks.store.waiter(name, new_token(), 60.0, owner_record())
        assert waiter is not None
        waiter.ask()
        waiters.append(waiter)
    try:
        for criteria in (Criteria(), Criteria(gone=False, words=("video",))):
            longest = locks.store.search(criteria, "-wait", 5).infos
            assert names(longest)[:2] == [first, second]
            waits = [info.longest_wait for info in longest]
            assert waits[0] is not None
            assert waits[1] is not None
            assert waits[0] > waits[1] >= 0
            assert waits[2:] == [None] * 3
            assert names(locks.store.search(criteria, "wait").infos)[-2:] == [second, first]
    finally:
        for waiter in waiters:
            waiter.leave()


def test_what_is_held_all_the_time_is_found_while_others_come_and_go(use_redis: UseRedis) -> None:
    use_redis()
    store, chance = locks.store, random.Random(3)
    kept = {f"kept:{number}": new_token() for number in range(700)}
    others = {f"other:{number}": new_token() for number in range(700)}
    both = [*kept.items(), *others.items()]
    chance.shuffle(both)
    for number, (name, token) in enumerate(both):
        # Many end in the same millisecond, or nearly
        store.acquire(name, token, 600.0 + number % 7, owner_record("videos.run"))

    later = iter(range(10**6))

    def disturb() -> None:
        # Never to end sooner than before
        for name in chance.sample(sorted(others), 8):
            store.clear(name)
        for name in chance.sample(sorted(kept), 5):
            assert store.extend(name, kept[name], 900 + next(later) / 100)
        store.acquire(f"new:{chance.random()}", new_token(), 605.0, owner_record())

    seen: list[str] = []
    for number, info in enumerate(store.walk()):
        seen.append(info.name)
        if number % 20 == 0:
            disturb()
    assert len(seen) == len(set(seen))
    assert set(kept) <= set(seen)

    # And a search, whose questions are the moments for it
    client: Any = store
    ask = client.client.run
    asked: list[int] = []

    def run(*args: Any, **options: Any) -> Any:
        if len(asked) < 60:
            asked.append(1)
            vars(client.client).pop("run")
            disturb()
            vars(client.client)["run"] = run
        return ask(*args, **options)

    vars(client.client)["run"] = run
    try:
        found = names(store.search(Criteria(words=("kept",), task="videos.run")).infos)
    finally:
        vars(client.client).pop("run")
    assert len(asked) > 5
    assert sorted(found) == sorted(kept)


@pytest.mark.parametrize("strange", [b"", b"a b", b"\xff", b" ", b"video:1 video:2", b"x" * 201])
def test_what_is_no_name_in_the_index_is_left_out_and_removed(
    use_redis: UseRedis, strange: bytes
) -> None:
    use_redis()
    hold(300)
    store: Any = locks.store
    everything = naive(locks.list(), Criteria(), "ttl")
    index = store.keyspace.index
    for order in ORDERS:
        for end in (10**10, 10**13, 2 * 10**13):
            store.client.ask("ZADD", [index], end * 1000 if end < 10**12 else end, strange)
            expected = naive(locks.list(), Criteria(), order)
            store.client.ask("ZADD", [index], end, strange)
            assert names(store.search(Criteria(), order).infos) == expected
    assert names(list(store.walk())) == everything
    store.client.ask("ZADD", [index], 10**13, strange)
    assert names(list(store.walk_matching(Criteria(words=("video",), within=3000.0)))) == naive(
        locks.list(), Criteria(words=("video",), within=3000.0), "ttl"
    )
    assert store.client.ask("ZSCORE", [index], strange) is None


def test_keys_without_an_end_are_found_among_thousands(use_redis: UseRedis) -> None:
    use_redis()
    hold(1500)
    endless = {f"old:{number}" for number in range(20)}
    for name in endless:
        cache.add(f"lock:{name}", "x", timeout=None)
    assert {info.name for info in locks.store.endless()} == endless
    assert all(info.ttl is None and info.token is None for info in locks.store.endless())
    assert {info.name for info in locks.store.endless("old:1")} == {
        name for name in endless if name.startswith("old:1")
    }


def test_records_that_cannot_match_are_not_sent(
    use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_redis()
    store: Any = locks.store
    # The bytes of another time may look like a letter that is folded to one of a word.
    with time_machine.travel(2_000_000_000, tick=False):
        for number in range(400):
            store.acquire(f"video:{number}", new_token(), 600, owner_record("a.b", f"id-{number}"))
    values: list[bytes] = []
    info = store.records.info

    def counting(name: str, value: bytes, *rest: Any) -> LockInfo:
        values.append(value)
        made: LockInfo = info(name, value, *rest)
        return made

    monkeypatch.setattr(store.records, "info", counting)
    for criteria in (
        Criteria(words=("id-399",)),
        Criteria(words=("videos.run",)),
        Criteria(words=("987654321",)),
        Criteria(task="a.c"),
        Criteria(host="elsewhere"),
        Criteria(cooling=True),
    ):
        values.clear()
        store.search(criteria)
        assert len(values) <= 2, criteria
    # Of a living process the first piece is sent, and then no more
    values.clear()
    store.search(Criteria(gone=True))
    assert len(values) <= searching.RECORDS_PER_TEST


@pytest.fixture
def folds() -> Iterator[tuple[str, str]]:
    """Each character that casefold changes, and what it makes of it."""
    return (
        (chr(code), chr(code).casefold())
        for code in range(128, sys.maxunicode + 1)
        if chr(code).casefold() != chr(code)
    )


def test_all_characters_that_fold_into_the_words_of_the_server_are_known(
    folds: Iterator[tuple[str, str]],
) -> None:
    found = set()
    for char, folded in folds:
        if any(each.isascii() for each in folded):
            found.add(char)
        # Words of these letters are compared byte by byte
        assert not any(unicodedata.category(each) == "Lo" for each in folded), char
    assert found == set(record_test.FOLDED_TO_ASCII)
