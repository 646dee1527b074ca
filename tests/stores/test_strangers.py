"""What is read from a store may have been written by anybody: it is shown, and never obeyed."""

from __future__ import annotations

import io
import json
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from django_tasklock import LockInfo, LockNotAcquired, StoreUnavailable, lock, locks
from django_tasklock.exceptions import InvalidLockConfig
from django_tasklock.stores import stores
from django_tasklock.stores.base import Extension
from django_tasklock.stores.records import new_record
from django_tasklock.testing.steps import granted
from tests.conftest import UseRedis
from tests.inside import Owner, asked, diagnose, new_token, owner_record, show_everywhere
from tests.steps import LONG, Meanwhile, holder, taken, waiting
from tests.waiting import until

FAR = 4_000_000_000_000
"""milliseconds since the epoch, in the year 2096"""


class Stranger:
    """Somebody else with access to the server."""

    def __init__(self) -> None:
        store: Any = stores["default"]
        self.store = store
        self.do = store.client.command

    def puts(self, name: str, value: bytes | dict[str, Any]) -> None:
        """This value, or a record, under the lock's key, and the name into the index."""
        raw = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.do("SET", self.store.key(name), raw, "PX", 600_000)
        self.lists(name.encode())

    def lists(self, name: bytes, end: float = FAR) -> None:
        self.do("ZADD", self.store.keys.index, repr(end), name)


@pytest.fixture
def stranger(use_redis: UseRedis) -> Stranger:
    use_redis()
    return Stranger()


def looked_at_everywhere(name: str) -> LockInfo:
    """The lock as all that shows locks sees it; none of them may fail."""
    info = holder(name)
    (listed,) = [found for found in locks.list() if found.name == name]
    assert (listed.token, listed.owner, listed.digest) == (info.token, info.owner, info.digest)
    show_everywhere(info)
    show_everywhere(listed)
    if locks.acquire(name) is not None:
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


def record() -> dict[str, Any]:
    owner = owner_record("videos.process", "id-1") | {"ttl": 60.0, "renew": True}
    return new_record(new_token(), owner)


class TestOwnRecords:
    """What we write ourselves must fit, whatever our process and its tasks are called."""

    @pytest.mark.parametrize(
        "name",
        ["a\nb", "x" * 5000, "\ud800", "名" * 300, '","slots":3,"version":"x', '\\"{}'],
        ids=ascii,
    )
    def test_of_threads_and_tasks_with_odd_names_are_ours(
        self, use_redis: UseRedis, name: str
    ) -> None:
        # Given a thread, a task and a task id of this name
        use_redis(SERIALIZER="django_redis.serializers.json.JSONSerializer")

        def take() -> Any:
            threading.current_thread().name = name
            return asked("video#1", ttl=LONG, task=name, task_id=name)

        # I expect the record of their lease to be read as ours, wherever it is shown
        lease = Meanwhile(take).result()
        info = looked_at_everywhere("video#1")
        assert (info.token, info.owner) == (lease.token, lease.owner)

        # And the lease to be acted on
        again = granted(stores["default"], "video#1", token=lease.token)
        assert again.grant.fence == lease.fence
        assert again.release()

    def test_of_an_earlier_or_later_version_are_ours(self, stranger: Stranger) -> None:
        """They have fewer fields, or more."""
        ours = record()
        few = {field: ours[field] for field in ("token", "at")}
        for made in (few, ours | {"later": None, "slot": 3, "share": 0.5}):
            stranger.puts("video:1", made)
            assert looked_at_everywhere("video:1").token == ours["token"]

    def test_of_a_serializer_of_ones_own_are_read_or_refused(self, use_redis: UseRedis) -> None:
        use_redis(SERIALIZER=f"{__name__}.SignedSerializer")
        assert holder(taken("video:1").name).token
        # Where the server cannot look into them.
        for options in ({"SERIALIZER": f"{__name__}.SealedSerializer"}, {"PICKLE_VERSION": 0}):
            use_redis(**options)
            with pytest.raises(InvalidLockConfig, match="cannot be found in its value"):
                locks.acquire("video:1")


class SignedSerializer:
    """A site's own."""

    def __init__(self, options: dict[str, Any]) -> None:
        pass

    def dumps(self, value: Any) -> bytes:
        return pickle.dumps(value) + b"signed"


class SealedSerializer(SignedSerializer):
    """Nobody else can read what it writes."""

    def dumps(self, value: Any) -> bytes:
        return bytes(each ^ 85 for each in pickle.dumps(value))


class Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


class TestValues:
    """Values of other code are locks, of which nothing is run, and only the beginning is read."""

    @pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
    def test_are_never_unpickled(self, stranger: Stranger, protocol: int, tmp_path: Path) -> None:
        """Nor what is in a wait queue."""
        bomb = Bomb(tmp_path / "ran")
        lease = taken("video:2")
        member = b"t" * 22 + b"c" * 22 + b"0:60000:" + pickle.dumps(bomb)
        stranger.do("ZADD", stranger.store.keys.of("video:2").queue, 1, member)
        assert [owner for owner in locks.waiters("video:2") if owner != Owner()] == []
        assert lease.release()
        values: list[Any] = [bomb, record() | {"task": bomb}]
        for value in values:
            stranger.puts("video:1", pickle.dumps(value, protocol))
            assert_foreign(looked_at_everywhere("video:1"))
            assert diagnose() is not None
            assert Meanwhile(lambda: locks.acquire("video:1", wait=0.2)).result() is None
            assert locks.clear("video:1", token=new_token()) is False
            assert locks.clear("video:1")
        assert not bomb.path.exists()

    def test_that_are_long_are_not_sent(self, stranger: Stranger) -> None:
        """Each refusal would carry them."""
        stranger.puts("video:1", b"x" * 2**24)
        info = looked_at_everywhere("video:1")
        assert_foreign(info)
        sent = int(stranger.do("INFO").partition(b"total_net_output_bytes:")[2].split()[0])
        assert locks.acquire("video:1") is None
        assert holder("video:1").digest == info.digest
        again = int(stranger.do("INFO").partition(b"total_net_output_bytes:")[2].split()[0])
        assert again - sent < 2**20
        assert stranger.store.clear("video:1", digest=info.digest)

    def test_in_the_place_of_a_note_are_none(self, stranger: Stranger) -> None:
        stranger.do("SET", stranger.store.keys.of(" a").key, b"\xff")
        assert stranger.store.get_note("a") is None
        assert stranger.store.reserve("a", "text", LONG) is None
        assert stranger.store.get_note("a") == "text"

    @pytest.mark.django_db
    def test_are_shown_in_the_admin(self, stranger: Stranger, admin_client: Client) -> None:
        stranger.puts("odd:1", record() | {"task": [], "pid": 10**30, "host": "\ud800"})
        home = "/admin/django_tasklock/lock/"
        assert "odd:1" in admin_client.get(home).content.decode()
        assert admin_client.get(f"{home}default_3Aodd_3A1/change/").status_code == 200


class TestTypes:
    """Keys of a type that no lock has."""

    def test_under_a_locks_key_is_an_outage_that_names_it_and_stops_no_renewal_of_others(
        self, stranger: Stranger
    ) -> None:
        stranger.do("RPUSH", stranger.store.key("video:1"), "a")
        for verb in (locks.acquire, locks.get, locks.is_locked, locks.clear):
            with pytest.raises(StoreUnavailable, match="lock:video:1"):
                verb("video:1")
        leases = [taken(f"other:{number}", renew=True) for number in range(3)]
        stranger.do("DEL", stranger.store.key("other:1"))
        stranger.do("RPUSH", stranger.store.key("other:1"), "a")
        batch = [Extension(each.name, each.token, LONG) for each in leases]
        assert stranger.store.extend_many(batch) == [True, False, True]


NO_NAMES = [b"\xff\xfe", b"two words", b"", b"line\nbreak", b"\xe2\x80\xae", "é".encode() * 201]


class TestIndexAndFences:
    def test_name_that_no_lock_can_have_is_none(self, stranger: Stranger) -> None:
        """Nobody could take it, or clear it."""
        names = [taken(f"lock:{number}").name for number in range(3)]
        for name in NO_NAMES:
            stranger.lists(name, 0.5 * FAR)
            stranger.do("SET", stranger.store.key("").encode() + name, b"x")
        assert [info.name for info in locks.list(limit=3)] == names
        assert [info.name for info in locks.list("lock")] == names
        assert locks.count("lock") == 3
        assert diagnose() is not None
        call_command("locks", "clear", "--all", "--noinput", stdout=io.StringIO())
        assert locks.list() == []

    @pytest.mark.parametrize("fence", ["x", "-5", "1e300", "nan", "9" * 400, "7" * 25])
    @pytest.mark.parametrize("which", ["video:1", ""], ids=["lock", "last"])
    def test_fence_that_is_no_number_is_none(
        self, stranger: Stranger, fence: str, which: str
    ) -> None:
        lease = taken("video:1")
        stranger.do("HSET", stranger.store.keys.fences, which, fence)
        info = looked_at_everywhere("video:1")
        assert info.token == lease.token
        assert (info.fence is None) is (which == "video:1")
        assert info.acquired_at is not None
        waits = Meanwhile(lambda: locks.acquire("video:1", wait=LONG))
        until(lambda: waiting("video:1") == 1)
        assert lease.release()
        assert (handed := waits.result()) is not None
        assert handed.release()
        again = taken("video:1", wait=LONG)
        assert again.fence is not None
        assert lease.fence is not None
        assert lease.fence < again.fence < 2**53
