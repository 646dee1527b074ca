"""What is read from a store may have been written by anybody: it is shown, and never obeyed."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import pickle
import struct
import threading
import tracemalloc
import zlib
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.core.management import call_command
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_tasklock import LockInfo, LockNotAcquired, lock, locks
from django_tasklock._values.arguments import LONGEST_TTL_SECONDS
from django_tasklock._values.owner import LARGEST_PID, LARGEST_START_TICKS, Owner, owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.cli.tables import json_row, lock_cells
from django_tasklock.operators.doctor import diagnose
from django_tasklock.stores import stores
from django_tasklock.stores.base import Extension
from django_tasklock.stores.record import new_record
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, holder, in_child, taken
from tests.store_cases import own_prefix, redis_cache
from tests.waiting import until

JSON = "django_redis.serializers.json.JSONSerializer"
MSGPACK = "django_redis.serializers.msgpack.MSGPackSerializer"
ZLIB = "django_redis.compressors.zlib.ZlibCompressor"
COMPRESSORS = [
    f"django_redis.compressors.{name}Compressor"
    for name in ("zlib.Zlib", "gzip.Gzip", "lzma.Lzma")
    # Older releases of django-redis have not all of them.
    if importlib.util.find_spec(f"django_redis.compressors.{name.partition('.')[0]}")
]
FAR = 4_000_000_000_000
"""milliseconds since the epoch, in the year 2096"""


class Stranger:
    """Somebody else with access to the server."""

    def __init__(self) -> None:
        store: Any = stores["default"]
        self.store = store
        self.redis = store.client.redis

    def puts(self, name: str, value: bytes, *, listed: bool = True) -> None:
        """This value under the lock's key, and the name into the index."""
        self.redis.set(self.store.key(name), value, px=600_000)
        if listed:
            self.lists(name.encode())

    def lists(self, name: bytes, end: float = FAR) -> None:
        self.redis.zadd(self.store.keyspace.index, {name: end})

    def makes(self, name: str, kind: str) -> None:
        """A key of this type in the place of the lock's."""
        key = self.store.key(name)
        self.of_type(key, kind)
        self.lists(name.encode())

    def of_type(self, key: str | bytes, kind: str) -> None:
        self.redis.delete(key)
        if kind == "stream":
            self.redis.xadd(key, {"a": "b"})
        elif kind == "list":
            self.redis.rpush(key, "a")
        elif kind == "hash":
            self.redis.hset(key, "a", "b")
        elif kind == "zset":
            self.redis.zadd(key, {"a": 1})
        else:
            self.redis.set(key, "a")


@pytest.fixture
def stranger(use_redis: UseRedis) -> Stranger:
    use_redis()
    return Stranger()


def looked_at_everywhere(name: str) -> LockInfo:
    """The lock as all that shows locks sees it; none of them may fail."""
    info = holder(name)
    (listed,) = [found for found in locks.list() if found.name == name]
    assert (listed.token, listed.owner, listed.digest) == (info.token, info.owner, info.digest)
    assert [found.name for found in locks.list(prefix=name)] == [name]
    assert name in [found.name for found in stores["default"].scan()]
    for shown in (info, listed):
        json.dumps(shown.as_json()).encode()
        (str(json_row(shown)) + str(lock_cells(shown)) + repr(shown)).encode()
        assert shown.owner.alive() in (None, True, False)
    lease = locks.acquire(name)
    if lease is not None:
        # A record that names a process of this machine that is gone.
        assert info.owner.alive() is False
        return info
    with pytest.raises(LockNotAcquired) as refused, lock(name):
        pytest.fail("the block ran")  # pragma: no cover
    str(refused.value).encode()
    return info


def assert_foreign(info: LockInfo) -> None:
    assert (info.token, info.owner, info.acquired_at, info.fence) == (None, Owner(), None, None)
    assert (info.granted, info.renewing) == (None, None)
    assert info.digest


def assert_sane(info: LockInfo) -> None:
    """It is one of ours, and every field is what its type says."""
    owner = info.owner
    assert info.token is not None
    assert len(info.token) == 22
    assert info.digest is None
    for text in (owner.host, owner.task, owner.task_id, owner.thread, owner.boot, owner.pidns):
        assert text is None or (type(text) is str and text.isprintable() and len(text) < 2000)
    assert owner.pid is None or (type(owner.pid) is int and 0 < owner.pid <= LARGEST_PID)
    assert owner.start is None or (
        type(owner.start) is int and 0 <= owner.start <= LARGEST_START_TICKS
    )
    assert info.granted is None or 0 < info.granted <= LONGEST_TTL_SECONDS
    assert info.renewing in (None, True, False)
    assert info.acquired_at is None or isinstance(info.acquired_at, datetime)


def record() -> dict[str, Any]:
    owner = owner_record("videos.process", "id-1") | {"ttl": 60.0, "renew": True}
    return new_record(new_token(), owner)


FIELDS = sorted(record())
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats()
    | st.text() | st.text("\ud800\n\0\u202e")
    | st.sampled_from([10**30, 10**400, -1, 0, 2**31, 2**63, math.inf, math.nan, "x" * 10**6, 12.0])
)  # fmt: skip
ANYTHING = st.recursive(
    SCALARS,
    lambda some: (
        st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=5), some, max_size=3)
    ),
    max_leaves=5,
)

each_example_as_it_comes = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class TestRecords:
    """Records that are almost ours."""

    @pytest.mark.parametrize(
        "serializer", [None, JSON, pytest.param(MSGPACK, marks=pytest.mark.nightly)]
    )
    def test_of_every_shape_are_locks(self, use_redis: UseRedis, serializer: str | None) -> None:
        use_redis(**({"SERIALIZER": serializer} if serializer else {}))
        stranger = Stranger()

        @each_example_as_it_comes
        @given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, min_size=1, max_size=3))
        def check(odd: dict[str, Any]) -> None:
            try:
                value = stranger.store.client.encode(record() | odd)
            except (OverflowError, ValueError):
                return  # Nobody can write that with this serializer.
            stranger.puts("video:1", value)
            info = looked_at_everywhere("video:1")
            if info.token is None:
                assert_foreign(info)
            else:
                assert_sane(info)
            assert locks.clear("video:1")

        check()

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("token", "t" * 21),
            ("token", "t" * 21 + "\n"),
            ("token", ["t"]),
            ("task", ["a", "list"]),
            ("task", "x" * 10**6),
            ("task", "\ud800"),
            ("task_id", 7),
            ("host", "a\nb"),
            ("host", {}),
            ("thread", False),
            ("pid", 12.0),
            ("pid", 10**30),
            ("pid", True),
            ("pid", 0),
            ("pid", -1),
            ("pid", "12"),
            ("start", 1.5),
            ("start", -1),
            ("ttl", 10**400),
            ("ttl", math.nan),
            ("ttl", math.inf),
            ("ttl", "60"),
            ("renew", 1),
            ("at", math.inf),
            ("at", 1e300),
            ("at", "now"),
        ],
        ids=repr,
    )
    def test_with_one_field_that_does_not_fit_are_foreign(
        self, stranger: Stranger, field: str, value: Any
    ) -> None:
        stranger.puts("video:1", pickle.dumps(record() | {field: value}))
        assert_foreign(looked_at_everywhere("video:1"))

    @pytest.mark.parametrize(
        "fields",
        [
            {"held_by": "al\nice", "reason": ""},
            {"held_by": "alice", "reason": "\x1b[2J"},
            {"held_by": "alice", "reason": "é" * 128},
            {"held_by": "a" * 256, "reason": ""},
            {"held_by": 7, "reason": ""},
            {"held_by": "alice", "reason": ["why"]},
            {"held_by": "alice"},
            {"held_by": "\u202ealice", "reason": ""},
            {"held_by": "alice", "reason": "", "pid": 1},
            {"held_by": "alice", "reason": "", "host": "worker-1"},
            {"held_by": "alice", "reason": "", "task": "videos.process"},
        ],
        ids=repr,
    )
    def test_of_an_operator_that_do_not_fit_are_foreign(
        self, stranger: Stranger, fields: dict[str, Any]
    ) -> None:
        """A hold names no process: otherwise a dead one could make others take it over."""
        stranger.puts("video:1", pickle.dumps({"token": new_token(), **fields}))
        info = looked_at_everywhere("video:1")
        assert_foreign(info)
        assert (info.held_by, info.reason) == (None, None)

    def test_of_an_operator_are_ours(self, stranger: Stranger) -> None:
        made = {"token": new_token(), "held_by": "", "reason": "why", "later": 1}
        stranger.puts("video:1", pickle.dumps(made))
        info = looked_at_everywhere("video:1")
        assert (info.token, info.held_by, info.reason) == (made["token"], "", "why")
        assert info.owner.alive() is None

    def test_with_more_fields_and_fewer_are_ours(self, stranger: Stranger) -> None:
        """Of a later version of this package, or an earlier one."""
        ours = record()
        few = {field: ours[field] for field in ("token", "at")}
        for made in (few, ours | {"later": None, "reason": "x", "slot": 3, "share": 0.5}):
            stranger.puts("video:1", stranger.store.client.encode(made))
            info = looked_at_everywhere("video:1")
            assert info.token == ours["token"]
            assert_sane(info)

    def test_that_never_end_and_others_are_listed_and_filtered(self, stranger: Stranger) -> None:
        odds: list[dict[str, Any]] = [{"at": 10**400}, {"host": []}, {"task": {}}, {"pid": "x"}]
        for number, odd in enumerate(odds):
            stranger.puts(f"odd:{number}", pickle.dumps(record() | odd))
        lease = taken("video:1")
        for choice in (["--limit=10"], ["--task=*"]):
            out = io.StringIO()
            call_command("locks", "list", *choice, "--format=json", stdout=out)
            assert lease.name in [row["name"] for row in json.loads(out.getvalue())]


class TestOwnRecords:
    """What we write ourselves must fit, whatever our process and its tasks are called."""

    @pytest.mark.parametrize(
        "name", ["a\nb", "x" * 5000, "\ud800", "名" * 300, "\u3000"], ids=ascii
    )
    def test_of_threads_and_tasks_with_odd_names_are_ours(
        self, stranger: Stranger, name: str
    ) -> None:
        def take() -> LockInfo | Any:
            threading.current_thread().name = name
            return locks.try_acquire("video:1", ttl=LONG, task=name, task_id=name)

        lease = Meanwhile(take).result()
        info = looked_at_everywhere("video:1")
        assert info.token == lease.token
        assert info.owner == lease.owner
        assert_sane(info)
        assert stranger.store.release("video:1", lease.token)

    def test_of_long_ids_stay_two(self, stranger: Stranger) -> None:
        ids = set()
        for number in range(2):
            locks.try_acquire(
                f"video:{number}", ttl=LONG, task="t", task_id="x" * 300 + str(number)
            )
            ids.add(holder(f"video:{number}").owner.task_id)
        assert len(ids) == 2

    @pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 5, -1])
    def test_are_read_in_every_version_of_a_pickle(self, use_redis: UseRedis, version: int) -> None:
        use_redis(PICKLE_VERSION=version)
        lease = locks.try_acquire("video:1", ttl=LONG, task="t", task_id="id-1")
        assert holder("video:1").token == lease.token
        assert cache.get("lock:video:1")["token"] == lease.token

    @pytest.mark.parametrize("compressor", COMPRESSORS)
    @pytest.mark.parametrize("options", [{}, {"SERIALIZER": JSON}], ids=["pickle", "json"])
    def test_are_read_compressed_and_from_before_that(
        self, use_redis: UseRedis, compressor: str, options: dict[str, str]
    ) -> None:
        use_redis(COMPRESSOR=compressor, **options)
        lease = taken("video:1")
        assert holder("video:1").token == lease.token
        stranger, ours = Stranger(), record()
        plain = json.dumps(ours).encode() if options else pickle.dumps(ours)
        stranger.puts("video:2", plain)
        assert holder("video:2").token == ours["token"]


class Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def redis_of_django(server: RedisServer) -> dict[str, Any]:
    return {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": server.url,
        "KEY_PREFIX": own_prefix(),
    }


class TestCode:
    """A pickle is a program. None is run to see who holds a lock."""

    @pytest.fixture(
        params=[
            "django-redis",
            "protocol-0",
            *(
                pytest.param(each, marks=pytest.mark.nightly)
                for each in ("django", "zlib", "json", "msgpack")
            ),
        ]
    )
    def reader(
        self, request: pytest.FixtureRequest, use_caches: UseCaches, redis_server: RedisServer
    ) -> str:
        options: dict[str, dict[str, Any]] = {
            "zlib": {"COMPRESSOR": ZLIB},
            "protocol-0": {"PICKLE_VERSION": 0},
            "json": {"SERIALIZER": JSON},
            "msgpack": {"SERIALIZER": MSGPACK},
        }
        kind: str = request.param
        made = redis_cache(redis_server.url, **options.get(kind, {}))
        use_caches(
            {"default": redis_of_django(redis_server) if kind == "django" else made},
            {"default": {}},
        )
        return kind

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    @pytest.mark.parametrize("where", ["all of it", "a field", "a key"])
    def test_is_not_run(self, reader: str, protocol: int, where: str, tmp_path: Path) -> None:
        bomb, stranger = Bomb(tmp_path / "ran"), Stranger()
        value: Any = bomb
        if where == "a field":
            value = record() | {"task": bomb}
        elif where == "a key":
            value = {**record(), bomb: 1}
        raw = pickle.dumps(value, protocol)
        stranger.puts("video:1", zlib.compress(raw) if reader == "zlib" else raw)
        assert_foreign(looked_at_everywhere("video:1"))
        assert list(diagnose()) is not None
        thread = Meanwhile(lambda: locks.acquire("video:1", wait=0.2))
        assert thread.result() is None
        assert stranger.store.waiters("video:1") == []
        assert locks.clear("video:1", token=new_token()) is False
        assert locks.clear("video:1")
        assert not bomb.path.exists()

    def test_is_not_run_from_a_waiters_record(self, stranger: Stranger, tmp_path: Path) -> None:
        bomb = Bomb(tmp_path / "ran")
        lease = taken("video:1")
        member = b"t" * 22 + b"c" * 22 + b"1:60000:" + pickle.dumps(bomb)
        queue = stranger.store.key("video:1") + " queue"
        stranger.redis.zadd(queue, {member: 1, b"nonsense": 2})
        assert locks.waiters("video:1") == [Owner(), Owner()]
        assert lease.release()
        assert not bomb.path.exists()

    def test_cache_with_its_own_pickles_is_read_by_itself(self, use_redis: UseRedis) -> None:
        """Of such a serializer nothing is known: it must read what it wrote."""
        use_redis(SERIALIZER="tests.stores.test_strangers.SignedSerializer")
        lease = taken("video:1")
        assert holder("video:1").token == lease.token
        forged = Stranger()
        forged.puts("video:2", pickle.dumps(record()))
        assert_foreign(holder("video:2"))


class SignedSerializer:
    """A site's own: it refuses what it has not signed."""

    def __init__(self, options: dict[str, Any]) -> None:
        pass

    def dumps(self, value: Any) -> bytes:
        return pickle.dumps(value) + b"signed"

    def loads(self, value: bytes) -> Any:
        assert value.endswith(b"signed")
        return pickle.loads(value)


LOTS_BYTES = 2**24


def bombs() -> dict[str, bytes]:
    """A few bytes that would take hundreds of megabytes."""
    head = b"\x80\x04"
    many = pickle.dumps(record())
    return {
        "LONG_BINPUT": head + b"}r" + struct.pack("<I", LOTS_BYTES) + b".",
        "LONG_BINPUT in a record": many[:-2] + b"r" + struct.pack("<I", LOTS_BYTES) + b"u.",
        "PUT": head + b"}p%d\n." % LOTS_BYTES,
        "BYTEARRAY8": b"\x80\x05\x96" + struct.pack("<Q", LOTS_BYTES * 8) + b"x.",
        "BINBYTES8": head + b"\x8e" + struct.pack("<Q", LOTS_BYTES * 8) + b"x.",
        "lists of lists": head + b"]\x94" + b"(h\x00h\x00e\x94" * 2000 + b".",
        "deep": head + b"]" * 8000 + b"a" * 7999 + b".",
        "long": pickle.dumps(record() | {"task": "x" * LOTS_BYTES}),
    }


class TestMemory:
    @pytest.mark.parametrize("kind", list(bombs()))
    @pytest.mark.parametrize("compressed", [False, True], ids=["plain", "zlib"])
    def test_is_not_taken_by_a_few_bytes(
        self, use_redis: UseRedis, kind: str, compressed: bool
    ) -> None:
        use_redis(**({"COMPRESSOR": ZLIB} if compressed else {}))
        stranger, value = Stranger(), bombs()[kind]
        stranger.puts("video:1", zlib.compress(value) if compressed else value)
        looked_at_everywhere("video:1")
        tracemalloc.start()
        try:
            assert_foreign(holder("video:1"))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 2_000_000

    @pytest.mark.parametrize("compressor", COMPRESSORS)
    def test_is_not_taken_by_what_unpacks_to_a_lot(
        self, use_redis: UseRedis, compressor: str
    ) -> None:
        use_redis(COMPRESSOR=compressor)
        stranger = Stranger()
        value = stranger.store.client.encode("x" * LOTS_BYTES)
        if len(value) > 16_000:
            value = stranger.store.client.encode("x" * (LOTS_BYTES // 2))
        stranger.puts("video:1", value)
        tracemalloc.start()
        try:
            assert_foreign(holder("video:1"))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 8_000_000

    def test_of_a_large_value_is_not_sent(self, stranger: Stranger) -> None:
        """Each refusal would carry it."""
        stranger.puts("video:1", b"x" * LOTS_BYTES)
        info = looked_at_everywhere("video:1")
        assert_foreign(info)
        assert len(stranger.store._value("video:1")) < 100
        assert locks.clear("video:1")


KINDS = ["list", "stream", "hash", "zset"]


class TestTypes:
    """Keys of a type that no lock has."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_under_a_locks_key_is_a_foreign_lock(self, stranger: Stranger, kind: str) -> None:
        lease = taken("video:2")
        stranger.makes("video:1", kind)
        assert_foreign(looked_at_everywhere("video:1"))
        assert [info.name for info in locks.list()] == ["video:2", "video:1"]
        assert stranger.store.held(["video:1", "video:2", "video:3"]) == {"video:1", "video:2"}
        assert locks.acquire("video:1", wait=0.05) is None
        assert "video:1" in [problem.what for problem in diagnose() if problem.kind == "no ttl"]
        assert stranger.store.reserve("key", "text", LONG, unless_held="video:1").token is None
        assert lease.extend()
        assert locks.clear("video:1", new_token()) is False
        assert locks.clear("video:1")
        assert taken("video:1").release()

    @pytest.mark.parametrize("kind", KINDS)
    def test_under_one_key_does_not_stop_the_renewal_of_others(
        self, stranger: Stranger, kind: str
    ) -> None:
        leases = [taken(f"video:{number}", renew=True) for number in range(3)]
        stranger.makes("video:1", kind)
        batch = [Extension(each.name, each.token, LONG, each._entry.proof) for each in leases]
        assert stranger.store.extend_many(batch) == [True, False, True]
        assert not leases[1].release()

    def test_waiter_takes_the_lock_when_that_key_is_gone(self, stranger: Stranger) -> None:
        stranger.makes("video:1", "list")
        waiter = Meanwhile(lambda: taken("video:1", wait=None))
        until(lambda: holder("video:1").waiters == 1)
        stranger.redis.delete(stranger.store.key("video:1"))
        assert waiter.result().release()

    @pytest.mark.parametrize("kind", ["string", "list", "stream"])
    @pytest.mark.parametrize("which", ["index", "fences", "queue"])
    def test_under_the_keys_beside_the_locks_are_removed(
        self, stranger: Stranger, which: str, kind: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        held = taken("video:1")
        key = {
            "index": stranger.store.keyspace.index,
            "fences": stranger.store.keyspace.fences,
            "queue": stranger.store.key("video:1").encode() + b" queue",
        }[which]

        def spoil() -> None:
            stranger.of_type(key, kind)

        spoil()
        assert locks.list() is not None
        spoil()
        assert locks.count() >= 0
        spoil()
        assert holder("video:1").token == held.token
        spoil()
        assert locks.acquire("video:1") is None
        spoil()
        assert locks.acquire("video:1", wait=0.05) is None
        spoil()
        assert held.extend()
        spoil()
        assert held.release()
        spoil()
        again = taken("video:1", wait=LONG)
        assert again.fence is not None
        assert held.fence is not None
        assert again.fence > held.fence
        spoil()
        assert locks.clear("video:1", again.token)
        if which != "queue":
            assert "was removed" in caplog.text

    @pytest.mark.parametrize("kind", ["string", "list"])
    @pytest.mark.parametrize("which", ["index", "fences", "queue"])
    def test_under_the_keys_beside_the_locks_lose_no_hand_over(
        self, stranger: Stranger, which: str, kind: str
    ) -> None:
        lease = taken("video:1", ttl=5.0)
        waiter = Meanwhile(lambda: taken("video:1", wait=None))
        until(lambda: holder("video:1").waiters == 1)
        key = {
            "index": stranger.store.keyspace.index,
            "fences": stranger.store.keyspace.fences,
            "queue": stranger.store.key("video:1").encode() + b" queue",
        }[which]
        stranger.of_type(key, kind)
        assert lease.release()
        assert waiter.result().release()


class TestIndexAndFences:
    NAMES = [
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"two words",
        b"",
        b"line\nbreak",
        b"\xe2\x80\xae",
        b"x" * 10**6,
        "é".encode() * 201,
    ]

    @pytest.mark.parametrize("prefix", ["", "lock"])
    @pytest.mark.parametrize("options", [{}, {"KEY_FUNCTION": "tests.store_cases.make_key"}])
    def test_name_that_no_lock_can_have_is_none(
        self, use_caches: UseCaches, redis_server: RedisServer, prefix: str, options: dict[str, str]
    ) -> None:
        """Nobody could take it, or clear it."""
        use_caches({"default": redis_cache(redis_server.url) | options}, {"default": {}})
        leases = [taken(f"lock:{number}") for number in range(3)]
        stranger = Stranger()
        for name in self.NAMES:
            stranger.lists(name, FAR if len(name) % 2 else 0.5 * FAR)
            if len(name) < 10**6:
                start = stranger.store.key("lock:").encode().partition(b"lock:lock:")[0]
                stranger.redis.set(start + b"lock:" + name, b"x")
        names = [lease.name for lease in leases]
        assert [info.name for info in locks.list(prefix, limit=3)] == names
        assert [info.name for info in locks.list(prefix)] == names
        if prefix == "":
            assert locks.count() == 3
        if not options:
            assert sorted(info.name for info in stranger.store.scan()) == names
        assert list(diagnose()) is not None
        call_command("locks", "clear", "--all", "--noinput", stdout=io.StringIO())
        assert locks.list() == []

    @pytest.mark.parametrize("end", [math.inf, 1e300, 1e18, float(2**62), FAR + 0.5])
    def test_end_that_no_lease_has_is_none(self, stranger: Stranger, end: float) -> None:
        taken("video:1")
        stranger.lists(b"video:1", end)
        (info,) = locks.list()
        assert info.ttl is None
        assert lock_cells(info)[1] == "never"

    @pytest.mark.parametrize(
        "fence", ["x", "", "-5", "1e300", "inf", "nan", "9" * 400, "0x10", "7" * 25]
    )
    @pytest.mark.parametrize("which", ["lock", "last", "waiter"])
    def test_fence_that_is_no_number_is_none(
        self, stranger: Stranger, fence: str, which: str
    ) -> None:
        lease = taken("video:1")
        stranger.redis.hset(
            stranger.store.keyspace.fences,
            {"lock": "video:1", "last": "", "waiter": " "}[which],
            fence,
        )
        info = looked_at_everywhere("video:1")
        assert info.token == lease.token
        if which == "lock":
            assert info.fence is None
        assert info.acquired_at is not None
        assert locks.acquire("video:1", wait=0.02) is None
        assert lease.release()
        again = taken("video:1", wait=LONG)
        assert again.fence is not None
        assert lease.fence is not None
        assert lease.fence < again.fence < 2**53


class TestPages:
    """The command and the admin, with a bit of everything in the store."""

    @pytest.fixture
    def crowd(self, stranger: Stranger) -> Stranger:
        odds: list[dict[str, Any]] = [
            {"task": []}, {"pid": 10**30}, {"ttl": 10**400}, {"host": "\ud800"}, {"at": "x"},
        ]  # fmt: skip
        for number, odd in enumerate(odds):
            stranger.puts(f"odd:{number}", pickle.dumps(record() | odd))
        for kind in KINDS:
            stranger.makes(f"odd:{kind}", kind)
        stranger.puts("odd:large", b"x" * 10**6)
        for name in TestIndexAndFences.NAMES:
            stranger.lists(name)
            stranger.redis.set(stranger.store.key("").encode() + name, b"x")
        taken("video:1")
        stranger.redis.hset(stranger.store.keyspace.fences, "video:1", "nonsense")
        return stranger

    def test_command_does_all_it_does(self, crowd: Stranger) -> None:
        for line in ("list", "list --format csv", "show odd:list"):
            out = io.StringIO()
            call_command("locks", *line.split(), stdout=out)
            out.getvalue().encode()
            assert "odd:" in out.getvalue()
        with suppress(SystemExit):
            call_command("locks", "doctor", stdout=io.StringIO())
        in_child(lambda: bool(locks.try_acquire("job:1", ttl=LONG)))
        call_command("locks", "clear", "--owner-gone", "--noinput", stdout=io.StringIO())
        assert not locks.is_locked("job:1")
        assert locks.is_locked("video:1")
        call_command("locks", "clear", "--all", "--noinput", stdout=io.StringIO())
        assert locks.list() == []

    @pytest.mark.django_db
    def test_admin_shows_it(self, crowd: Stranger, admin_client: Client) -> None:
        home = "/admin/django_tasklock/lock/"
        for page in ("", "?q=odd", "?state=gone", "?state=endless", "events/"):
            assert admin_client.get(home + page).status_code == 200, page
        assert "odd:stream" in admin_client.get(home).content.decode()
        for name in ("odd_3Astream", "odd_3A0", "odd_3Alarge", "video_3A1"):
            assert admin_client.get(f"{home}default_3A{name}/change/").status_code == 200
        assert admin_client.get(home + "health/").status_code == 200


def test_note_that_is_no_text_is_none_of_ours(stranger: Stranger) -> None:
    stranger.redis.set(stranger.store.keyspace.note_key("a"), b"\xff")
    assert stranger.store.get_note("a") is not None
    assert stranger.store.reserve("a", "text", LONG) is not None
