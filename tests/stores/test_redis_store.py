"""`RedisStore`: the caches that it serves, the ways in which they reach their server, long lists,
and its scripts."""

from __future__ import annotations

import re
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis
from django.core.cache import cache, caches

import django_tasklock.stores
from django_tasklock import StoreUnavailable, locks
from django_tasklock.stores import stores
from django_tasklock.stores.records import LISTED, record_of
from tests import needs
from tests.agent import run_python
from tests.conftest import UseCaches, UseRedis
from tests.inside import list_in_little_scripts
from tests.nightly.model.walk import walk
from tests.proxy import CutProxy
from tests.seeds import drawn_seed
from tests.servers import NoRedis, RedisServer, free_port, own_redis
from tests.steps import LONG, taken, waiter
from tests.store_cases import redis_cache
from tests.tls import Tls
from tests.waiting import until


@pytest.mark.parametrize(
    "options",
    [
        {"CONNECTION_POOL_KWARGS": {"protocol": 3}},
        {"CONNECTION_POOL_KWARGS": {"max_connections": 1}},
        {"CONNECTION_POOL_CLASS": "redis.BlockingConnectionPool"},
        {"CONNECTION_POOL_KWARGS": {"decode_responses": False, "health_check_interval": 1}},
        {"SERIALIZER": "django_redis.serializers.json.JSONSerializer"},
        {"COMPRESSOR": "django_redis.compressors.zlib.ZlibCompressor"},
        {"IGNORE_EXCEPTIONS": True},
    ],
    ids=str,
)
def test_with_options(use_redis: UseRedis, options: dict[str, Any]) -> None:
    # Given a cache of django-redis with these OPTIONS
    use_redis(**options)

    # I expect everything to work that a lock does
    assert_locks_work()


def assert_locks_work() -> None:
    """They exclude, are renewed, are handed over, and are seen."""
    lease = taken("video:1")
    assert locks.acquire("video:1") is None
    assert [info.token for info in locks.list()] == [lease.token]
    following = waiter("video:1", 1)
    assert lease.extend()
    assert lease.release()
    assert following.result().release()
    assert locks.count() == 0


def test_by_a_unix_socket(use_redis: UseRedis, tmp_path: Path) -> None:
    try:
        with own_redis(needs_own=True, options=("--unixsocket", str(tmp_path / "redis.sock"))):
            use_redis(f"unix://{tmp_path}/redis.sock?db=2")
            assert_locks_work()
    except NoRedis as error:
        needs.missing(str(error))


def test_with_tls(use_redis: UseRedis, tmp_path: Path) -> None:
    with Tls.needed(tmp_path) as tls:
        options = {"tls-port": str(free_port())} | tls.directives()
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        with own_redis(needs_own=True, options=words):
            url = f"rediss://127.0.0.1:{options['tls-port']}/0"
            use_redis(url, CONNECTION_POOL_KWARGS=tls.client())
            assert_locks_work()


def test_a_cache_of_django_valkey_is_served(
    use_caches: UseCaches, redis_server: RedisServer
) -> None:
    pytest.importorskip("django_valkey")
    url = redis_server.url.replace("redis://", "valkey://")
    cache = redis_cache(url) | {"BACKEND": "django_valkey.cache.ValkeyCache"}
    use_caches({"default": cache}, {"default": {}})
    assert_locks_work()
    lease = taken("video:1")
    assert lease.token in caches["default"].get("lock:video:1")
    assert caches["default"].add("lock:video:1", "theirs") in (None, False)


def test_stores_on_one_cache_have_locks_of_their_own(
    use_caches: UseCaches, redis_server: RedisServer
) -> None:
    prefixes = {"default": {}, "other": {"KEY_PREFIX": "tasklock"}, "bare": {"KEY_PREFIX": ""}}
    use_caches({"default": redis_cache(redis_server.url)}, prefixes)
    for alias in prefixes:
        assert locks.using(alias).acquire("video:1", ttl=LONG)
        assert stores[alias].reserve("queued task", alias, LONG) is None
    for alias in prefixes:
        assert [info.name for info in locks.using(alias).list()] == ["video:1"]
        assert stores[alias].get_note("queued task") == alias
    assert caches["default"].get("video:1") != caches["default"].get("lock:video:1")


@pytest.mark.parametrize("serializer", ["json.JSONSerializer", "pickle.PickleSerializer"])
def test_a_lease_has_the_record_of_its_owner_and_of_no_one_like_it(
    use_redis: UseRedis, serializer: str
) -> None:
    # Given owners of whom some are equal for Python
    use_redis(SERIALIZER=f"django_redis.serializers.{serializer}")
    store: Any = stores["default"]
    owners: list[dict[str, Any]] = [
        {}, {"pid": 7, "task": "a task", "task_id": "7"}, {"pid": 7, "task": '"\u00e9\\{}'},
        {"ttl": 60, "renew": True}, {"ttl": 60.0, "renew": True}, {"ttl": 60, "renew": False},
    ]  # fmt: skip
    for token in ("a" * 22, "b" * 22):
        for owner in owners:
            # I expect each to be written as it is, the first time and later
            began = time.time()
            record = dict(record_of(store.encoding.value_of_lease(token, owner)) or {})
            assert began <= record.pop("at") <= time.time()
            assert str(sorted(record.items())) == str(sorted({"token": token, **owner}.items()))


EACH_VERB = """
import sys
sys.modules["hiredis"] = None

from concurrent.futures import ThreadPoolExecutor
from django_tasklock import lock, locks

def work():
    with lock("video:1", wait=30):
        return locks.is_locked("video:1")

with ThreadPoolExecutor(3) as threads:
    results = [thread.result() for thread in [threads.submit(work) for _ in range(3)]]
assert results == [True] * 3, results
with lock(["video:1", "video:2"]), lock("gpu", slots=2):
    assert len(locks.list("video:")) == 2
    assert locks.acquire("video:1") is None
lease = locks.acquire("video:1")
handle = lease.detach()
lease = locks.adopt(handle)
assert lease.extend(30)
assert locks.clear("video:1")
assert {event.kind for event in locks.history()} >= {"refused", "cleared"}
"""


def test_each_verb_without_hiredis(use_redis: UseRedis) -> None:
    use_redis()
    run_python(EACH_VERB)


def test_a_server_whose_clock_was_put_back_is_up_for_as_long_as_it_was_seen(
    use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own clock it will be started in an hour, and no quorum would count it before."""
    use_redis()
    store: Any = stores["default"]
    info = store.client.info
    put_back = {"uptime_in_seconds": "-3600"}
    monkeypatch.setattr(store.client, "info", lambda section: info(section) | put_back)
    until(lambda: store.uptime() > 0.1)


APART_SECONDS = 1000.0
"""seconds between the ends of two leases, and until the first: however long the test takes"""
NAMES = [f"video:{number:02}" for number in range(45)]


@pytest.fixture
def little_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    list_in_little_scripts(monkeypatch, 10)


def hold() -> None:
    """The names, in the order in which they expire."""
    for number, name in enumerate(NAMES):
        assert locks.acquire(name, ttl=APART_SECONDS * (1 + number))


def names(limit: int | None = None, offset: int = 0) -> list[str]:
    return [info.name for info in locks.list(limit=limit, offset=offset)]


@pytest.mark.usefixtures("little_scripts")
class TestPages:
    @pytest.fixture(autouse=True)
    def held(self, use_redis: UseRedis) -> None:
        use_redis()
        hold()

    def test_make_one_list(self) -> None:
        # Given more locks than four scripts read, I expect one list of them
        assert names() == NAMES

        # And any part of it
        for limit in (0, 1, 9, 10, 11, 44, 45, 46, 100):
            for offset in (0, 1, 10, 44, 45):
                assert names(limit, offset) == NAMES[offset : offset + limit]

    def test_those_that_were_deleted_by_hand_are_left_out(self) -> None:
        cache.delete_many([f"lock:{name}" for name in NAMES[5:25]])
        assert names() == NAMES[:5] + NAMES[25:]
        assert names(8) == NAMES[:5] + NAMES[25:28]

    def test_none_that_stays_is_left_out_or_listed_twice_while_others_move(self) -> None:
        """Leases are renewed and released, and new ones taken, between two scripts."""
        moving, staying = NAMES[::3], [name for name in NAMES if name not in NAMES[::3]]
        listed = []
        for number, info in enumerate(stores["default"].walk("video")):
            listed.append(info.name)
            name = moving[number % len(moving)]
            if number % 2:
                locks.clear(name)
            elif (lease := locks.acquire(name, ttl=LONG)) is not None:
                lease.extend(50 * APART_SECONDS)
        assert [name for name in listed if name in staying] == staying
        assert len(set(listed)) == len(listed)

    def test_more_may_end_in_one_millisecond_than_a_script_reads(self) -> None:
        store: Any = stores["default"]
        end = 10**13
        for name in NAMES:
            store.client.command("ZADD", store.keys.index, end, name)
        assert sorted(names()) == NAMES


@pytest.mark.usefixtures("little_scripts")
class TestReservations:
    @pytest.fixture
    def store(self, use_redis: UseRedis) -> Any:
        use_redis()
        return stores["default"]

    def test_more_than_one_script_reads(self, store: Any) -> None:
        keys = [f"{LISTED[1:]}job {number}" for number in range(35)]
        for number, key in enumerate(keys):
            assert store.reserve(key, "id", LONG + number) is None
        assert [found.key for found in store.reservations()] == keys

    def test_nothing_is_left_of_what_has_ended(self, store: Any) -> None:
        """By themselves, or by the message's start."""
        for number in range(6):
            store.reserve(f"{LISTED[1:]}short {number}", "id", 0.05)
        store.reserve(f"{LISTED[1:]}long", "id", LONG)
        until(lambda: len([*store.reservations()]) == 1)
        store.reserve(f"{LISTED[1:]}next", "id", LONG)
        assert store.client.command("ZCARD", store.keys.listed) == 2
        assert store.unreserve(f"{LISTED[1:]}long", "id")
        assert store.client.command("ZCARD", store.keys.listed) == 1


@pytest.mark.usefixtures("little_scripts")
def test_a_page_whose_reply_is_lost_is_asked_for_again_and_an_outage_is_no_shorter_list(
    use_redis: UseRedis, cut_proxy: CutProxy
) -> None:
    use_redis(cut_proxy.url)
    hold()
    # What is in the command that asks for the records of a page, and in no other.
    pages = [f"${len(NAMES[at])}\r\n{NAMES[at]}\r\n".encode() for at in (0, 20, 40)]
    for lost, page in enumerate(pages, 1):
        cut_proxy.drop_reply(page)
        assert names() == NAMES
        assert cut_proxy.lost_replies == lost
    cut_proxy.drop_reply(pages[1], times=99)
    with pytest.raises(StoreUnavailable):
        names()


STEPS = 30
BY_DAY = 40
"""walks, the same each day; at night others are drawn"""


@pytest.mark.parametrize("walks", [BY_DAY, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_scripts_take_the_steps_of_the_model(
    walks: int, own_redis_server: RedisServer, use_redis: UseRedis
) -> None:
    """``SEED=…`` takes the same walks of a night again."""
    # Given a Redis, and walks through the states of a lock
    use_redis(own_redis_server.url)
    client = redis.Redis.from_url(own_redis_server.url)
    seed = 1 if walks == BY_DAY else drawn_seed()

    # I expect each step of a script to lead to the state that the model says
    for at in range(walks):
        walk(f"walk:{at}", Random(f"{seed}-{at}"), STEPS, client)
    client.close()


SCRIPTS = sorted(Path(django_tasklock.stores.__file__).parent.glob("lua/*.lua"))
WITHOUT_KEYS = {"TIME", "PUBLISH", "PUBSUB", "INFO"}
KEY = r"KEYS|key|keys|index|listed|fences|queue|queues|gate|note|index_of_it|change"
CALL = re.compile(r"redis\.p?call\('([A-Z]+)',?\s*(?:unpack\()?(\w*)")
SET = re.compile(rf"^ *(?:local )?(?:\w+, )*(?:{KEY})\b(?:, \w+)* = (.*)$", re.MULTILINE)


def test_no_script_makes_a_key() -> None:
    assert SCRIPTS
    for script in SCRIPTS:
        text = re.sub("--.*", "", script.read_text())
        for command, key in CALL.findall(text):
            assert command in WITHOUT_KEYS or re.fullmatch(KEY, key), (script, command, key)
        for value in SET.findall(text):
            assert ".." not in value, (script, value)
