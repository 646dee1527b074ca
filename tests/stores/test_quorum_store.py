"""A quorum: its options, its fences, members that have lost their data, lists, findings."""

from __future__ import annotations

import io
import json
import random
import time
from contextlib import suppress
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from django_tasklock import InvalidLockConfig, Lease, StoreUnavailable, lock, locks
from django_tasklock._values import clock
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore, Grant, Refusal
from django_tasklock.stores.quorum import QuorumStore
from tests.admin.conftest import LIST, client_with, operator, words_of
from tests.conftest import UseCaches, use_quorum
from tests.greenlets import LIBRARIES, run_in_greenlets
from tests.mailroom import mailroom
from tests.quorum import Five, quorum
from tests.servers import RedisServer
from tests.steps import LONG, RENEWED, Traffic, holder, in_child, taken
from tests.store_cases import database_store, make_lease_table, members, quorum_store, redis_cache
from tests.stores.contract import WholeContract
from tests.waiting import until

__all__ = ["client_with", "operator"]

REDIS = {"BACKEND": "django_tasklock.stores.redis.RedisStore", "CACHE": "on_redis"}
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "on_redis": redis_cache("redis://127.0.0.1:1"),
}


@pytest.fixture
def on_quorum(five_servers: list[RedisServer], use_caches: UseCaches) -> None:
    """Five servers that nothing harms."""
    caches, tasklock = members([server.url for server in five_servers])
    use_caches({"default": CACHES["default"]} | caches, {"default": quorum_store()} | tasklock)


def granted(name: str, token: str | None = None, ttl: float = LONG) -> Grant:
    answer = quorum().acquire(name, token or new_token(), ttl, owner_record())
    assert isinstance(answer, Grant), answer
    return answer


def granted_by_all(name: str, token: str | None = None, ttl: float = LONG) -> None:
    """`granted`, and the members that the caller did not have to wait for have it too."""
    grant = granted(name, token, ttl)
    until(lambda: len(grant.proof.proofs) == 5, "the answers of all")


def granted_by_three(five: Five) -> None:
    """Each of them by itself: of the quorum's calls to the others one might still be on its way."""
    for alias in "abc":
        answer = stores[alias].acquire("video:1", "h" * 22, LONG, owner_record())
        assert isinstance(answer, Grant)
    assert five.having("video:1") == {0, 1, 2}


def left_on(alias: str, name: str) -> float:
    """What is left of a lease on one member."""
    held = stores[alias].get(name)
    assert held is not None
    assert held.ttl is not None
    return held.ttl


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"STORES": None}, "STORES is a list of at least three aliases"),
            ({"STORES": "abc"}, "STORES is a list of at least three aliases"),
            ({"STORES": ["a", "b"]}, "2 of at least 3 stores: the majority of two is both"),
            ({"STORES": ["a", "b", "b"]}, "STORES names 'b' twice"),
            ({"STORES": ["a", "b", "x"]}, "there is no lock store 'x'"),
            ({"STORES": ["a", "b", "plain"]}, "a CacheStore does not release in one step"),
            ({"STORES": ["a", "b", "default"]}, "member of itself: .*default -> default"),
            ({"STORES": ["a", "b", "other"]}, "member of itself: .*default -> other -> default"),
            ({"MEMBER_TIMEOUT": 0}, "MEMBER_TIMEOUT is a number of seconds, not 0"),
            ({"LONGEST_TTL": "1h"}, "LONGEST_TTL is a number of seconds, not '1h'"),
            ({"LONGEST_TTL": 30}, "its TTL is 60 s, and LONGEST_TTL 30 s"),
            ({"PERSISTENT": ["d"]}, "PERSISTENT is a list of some of the aliases in STORES"),
            ({"PERSISTENT": "a"}, "PERSISTENT is a list of some of the aliases in STORES"),
            ({"DRIFT": 1}, "DRIFT is a share of the ttl from 0 to 1, not 1"),
            ({"DRIFT": True}, "DRIFT is a share"),
            ({"THREADS": 0}, "THREADS is a whole number of at least 1, not 0"),
            ({"QUORUM": 2}, "has no option QUORUM"),
        ],
    )
    def test_wrong_ones_are_refused(
        self, use_caches: UseCaches, options: dict[str, Any], says: str
    ) -> None:
        """Before any server is asked: there is none."""
        given = {"STORES": ["a", "b", "c"], **options}
        backend = "django_tasklock.stores.quorum.QuorumStore"
        use_caches(
            CACHES,
            {
                "default": {"BACKEND": backend, "OPTIONS": given},
                "other": {"BACKEND": backend, "OPTIONS": {"STORES": ["a", "default", "b"]}},
                "plain": {"CACHE": "default"},
                **dict.fromkeys("abc", REDIS),
            },
        )
        with pytest.raises(InvalidLockConfig, match=says):
            _ = stores["default"]

    @pytest.mark.django_db
    def test_prefix_that_leaves_no_room_for_notes_is_refused_before_the_first_note(
        self, use_caches: UseCaches
    ) -> None:
        def use_prefix(prefix: str) -> None:
            database = database_store("default") | {"KEY_PREFIX": prefix}
            use_caches(CACHES, {"default": quorum_store("abc"), **dict.fromkeys("abc", database)})

        use_prefix("p" * 48)
        assert quorum().members[0].notes.settings.key_prefix == "p" * 48 + ".notes"
        use_prefix("p" * 49)
        with pytest.raises(InvalidLockConfig, match=r"at most 54 .*: 'p+\.notes' is too long"):
            quorum()

    def test_members_are_the_stores_of_their_aliases(self, on_quorum: None) -> None:
        assert [member.store for member in quorum().members] == [stores[a] for a in "abcde"]

    def test_a_quorum_follows_the_settings(self, on_quorum: None, use_caches: UseCaches) -> None:
        first = quorum()
        use_caches(
            CACHES, {"default": quorum_store("abc", THREADS=2), **dict.fromkeys("abc", REDIS)}
        )
        assert quorum() is not first
        assert (quorum().size, quorum().majority) == (3, 2)

    def test_a_lease_that_is_longer_than_members_wait_is_refused(
        self, five_servers: list[RedisServer], use_caches: UseCaches
    ) -> None:
        caches, tasklock = members([server.url for server in five_servers])
        options = quorum_store(LONGEST_TTL=100.0, PERSISTENT=list("abcde"))
        use_caches({"default": CACHES["default"]} | caches, {"default": options} | tasklock)
        with pytest.raises(
            ValueError, match=r"leases of 100 s at most \(LONGEST_TTL\), not of 101"
        ):
            locks.acquire("video:1", ttl=101)
        lease = taken("video:1", ttl=100)
        with pytest.raises(ValueError, match="LONGEST_TTL"):
            lease.extend(ttl=101)
        with pytest.raises(ValueError, match=r"keeps a lease for 100 s .* not for 101 s"):
            lease.detach(ttl=101)
        assert lease.held
        with (
            pytest.raises(InvalidLockConfig, match=r"cannot let it cool for 101 s"),
            lock("video:2", cooldown=101),
        ):
            pass
        assert lease.release()


class TestValidity:
    @pytest.mark.nightly
    def test_members_keep_a_lease_for_longer_than_its_holder(self, on_quorum: None) -> None:
        """By as much as their clocks may be too fast."""
        before = clock.now()
        granted_by_all("video:1", ttl=100.0)
        for alias in "abcde":
            assert 101.002 - (clock.now() - before) - 0.01 < left_on(alias, "video:1") <= 101.002
        lease = taken("video:2", ttl=100.0)
        assert lease.remaining <= 100.0
        before = clock.now()
        assert lease.extend(50.0)
        until(lambda: left_on("a", "video:2") <= 50.502, "the extension")
        assert 50.502 - (clock.now() - before) - 0.01 < left_on("a", "video:2")

    def test_its_ttl_is_the_time_until_no_majority_has_the_lease(self, on_quorum: None) -> None:
        """By those that were asked: `get` waits for a majority only, and `list` for all."""
        token = new_token()
        granted_by_all("video:1", token, ttl=30.0)
        for alias, lasts in zip("abcde", (10.0, 20.0, 30.0, 40.0, 50.0), strict=True):
            assert stores[alias].extend("video:1", token, lasts)
        ttl = holder("video:1").ttl
        assert ttl is not None
        assert 29.0 < ttl <= 50.0
        assert [info.ttl is not None and 29.0 < info.ttl <= 30.0 for info in locks.list()] == [True]


def granted_by_those_there() -> Lease | None:
    """A member that was slow may still have a lease that a majority does not know of."""
    for member in quorum().members:
        with suppress(StoreUnavailable):
            member.store.clear("video:1")
    return locks.acquire("video:1", ttl=LONG)


class TestFences:
    def test_they_grow_though_the_member_with_the_greatest_dies(self, five: Five) -> None:
        """The clock of one member is an hour ahead of all others."""
        ahead = time.time_ns() // 1000 + 3600 * 1_000_000
        assert taken("video:1").release()
        five.plant_fence(ahead, 0)
        for number in (3, 4):
            five.harm("cut off", number)
        first = taken("video:1")
        assert first.fence is not None
        assert first.fence > ahead
        assert first.release()
        five.harm("killed", 0)
        for number in (3, 4):
            five.mend("cut off", number)
        quorum()._last_floor = 0  # as in another process
        second = taken("video:1")
        assert second.fence is not None
        assert second.fence > first.fence

    @pytest.mark.nightly
    @pytest.mark.slow
    def test_they_grow_whatever_the_clocks_and_whoever_is_away(self, five: Five) -> None:
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        chance, last = random.Random(seed), 0
        for _ in range(40):
            now = time.time_ns() // 1000
            away = chance.sample(range(5), 2)
            ahead = now + chance.randrange(10**10)
            stored = five.client(away[0]).hget(quorum().members[0].store.keyspace.fences, "")  # type: ignore[attr-defined]
            five.plant_fence(max(ahead, int(stored or 0)), away[0])
            for number in away:
                five.harm("cut off", number)
            quorum()._last_floor = 0  # as in another process
            lease = until(granted_by_those_there)
            assert lease is not None
            fence = lease.fence
            assert fence is not None
            assert fence > last
            last = fence
            for number in away:
                five.mend("cut off", number)
            assert locks.clear("video:1")

    @pytest.mark.nightly
    def test_mostly_one_script_at_each_member_grants_a_lock(
        self, on_quorum: None, five_servers: list[RedisServer]
    ) -> None:
        assert taken("video:1").release()
        traffic = [Traffic(server) for server in five_servers]
        for _ in range(50):
            assert taken("video:1").release()
        # A grant writes its fence once, and to raise one afterwards takes two more writes.
        written = sum(each.commands()["hset"] for each in traffic)
        assert written <= 5 * 50 * 1.3

    @pytest.mark.nightly
    def test_all_members_know_the_fence_of_the_lease(self, on_quorum: None) -> None:
        lease = taken("video:1")
        assert lease.fence is not None
        until(lambda: all(fence_at(alias) == lease.fence for alias in "abcde"))
        following = quorum().next_fence()
        assert following is not None
        assert following > lease.fence


def fence_at(alias: str) -> int | None:
    info = stores[alias].get("video:1")
    return None if info is None else info.fence


class TestMembersThatLostTheirData:
    """Three have a lease, two did not know of it; then one of the three is emptied."""

    @pytest.fixture
    def with_three(self, five: Five) -> None:
        five.plant_age(1000.0)
        granted_by_three(five)

    def test_an_emptied_member_does_not_count(self, five: Five, use_caches: UseCaches) -> None:
        use_quorum(five, use_caches, LONGEST_TTL=300.0, PERSISTENT=list("abcde"))
        five.plant_age(1000.0)
        granted_by_three(five)
        five.harm("emptied", 0)
        answer = quorum().acquire("video:1", new_token(), LONG, owner_record())
        assert isinstance(answer, Refusal)
        assert answer.holder.token == "h" * 22
        found = [each.id for each in quorum().check()]
        assert found.count("member_waits") == 1

    @pytest.mark.nightly
    def test_without_the_wait_it_would(self, with_three: None, five: Five) -> None:
        """So the docs say that LONGEST_TTL None may give a lock to two."""
        five.harm("emptied", 0)
        assert isinstance(quorum().acquire("video:1", new_token(), LONG, owner_record()), Grant)
        assert "restarts" in [each.id for each in quorum().check()]

    @pytest.mark.nightly
    def test_a_restarted_member_counts_after_the_longest_ttl(
        self, five: Five, use_caches: UseCaches
    ) -> None:
        use_quorum(five, use_caches, LONGEST_TTL=3.0, ttl=2.0)
        # All five were started a moment ago.
        seen = {str(answer_of("video:0"))}
        until(lambda: "member_waits" not in {each.id for each in quorum().check()})
        five.harm("killed", 0)
        five.mend("killed", 0)
        five.harm("paused", 1)
        assert isinstance(answer_of("video:2"), Grant)
        five.harm("killed", 2)
        # Three answer, and one of them was restarted.
        answer = answer_of("video:3")
        seen.add(str(answer))
        assert not isinstance(answer, Grant)
        assert any("do not count before they have kept their data for 3 s" in each for each in seen)
        until(lambda: isinstance(answer_of("video:3"), Grant))

    @pytest.mark.nightly
    def test_a_new_quorum_works_at_once_on_servers_that_are_up(
        self, five: Five, use_caches: UseCaches
    ) -> None:
        use_quorum(five, use_caches, LONGEST_TTL=300.0, PERSISTENT=list("abcde"))
        assert taken("video:1").release()
        assert list(quorum().check()) == []


def answer_of(name: str) -> Grant | Refusal | str:
    try:
        return quorum().acquire(name, new_token(), 0.5, owner_record())
    except StoreUnavailable as error:
        return str(error)


class TestLists:
    def test_what_a_minority_has_is_no_lock(self, on_quorum: None) -> None:
        for alias in "ab":
            stores[alias].acquire("video:1", "m" * 22, LONG, owner_record())
        assert locks.get("video:1") is None
        assert not locks.is_locked("video:1")
        assert locks.list() == []
        assert locks.count() == 0
        assert quorum().held(["video:1"]) == set()
        assert list(quorum().scan()) == []
        lease = taken("video:1")
        assert [info.token for info in locks.list()] == [lease.token]
        assert [info.token for info in quorum().scan()] == [lease.token]
        assert lease.release()
        assert stores["a"].release("video:1", "m" * 22)

    @pytest.mark.nightly
    def test_long_lists_are_merged_page_by_page(self, on_quorum: None) -> None:
        for number in range(300):
            granted(f"video:{number:03}", ttl=1000.0 + number)
        names = [f"video:{number:03}" for number in range(300)]
        assert [info.name for info in locks.list()] == names
        assert [info.name for info in locks.list(limit=7, offset=200)] == names[200:207]
        assert [info.name for info in locks.list("video:1", limit=2, offset=99)] == ["video:199"]
        assert locks.count() == 300
        assert locks.count("video:2") == 100
        # Some that a minority has, at the beginning of two lists.
        for number in range(50):
            for alias in "cd":
                stores[alias].acquire(f"stray:{number}", new_token(), 10.0, owner_record())
        assert [info.name for info in locks.list(limit=5)] == names[:5]
        assert locks.count() == 300

    @pytest.mark.nightly
    def test_notes_are_not_among_the_locks(self, on_quorum: None) -> None:
        assert quorum().reserve("key", "text", LONG) is None
        assert quorum().get_note("key") == "text"
        assert (locks.list(), locks.count(), list(quorum().scan())) == ([], 0, [])
        assert all(stores[alias].count() == 0 for alias in "abcde")

    @pytest.mark.nightly
    def test_keys_of_other_code_are_locks_if_a_majority_has_them(self, on_quorum: None) -> None:
        from django.core.cache import caches

        for alias in "ab":
            caches[alias].add("lock:video:1", "locked", LONG)
        assert locks.get("video:1") is None
        caches["c"].add("lock:video:1", "locked", LONG)
        info = holder("video:1")
        assert (info.token, info.owner.host) == (None, None)
        assert info.digest is not None
        assert locks.acquire("video:1") is None
        assert quorum().clear_foreign("video:1", "0" * 32) is False
        assert quorum().clear_foreign("video:1", info.digest) is True
        assert taken("video:1").release()


def test_findings_name_the_members(five: Five) -> None:
    five.harm("killed", 2)
    found = list(quorum().check())
    assert {"member_down", "restarts"} <= {each.id for each in found}
    (down,) = [each for each in found if each.id == "member_down"]
    assert "'c' does not answer" in down.message
    five.harm("killed", 0)
    five.harm("killed", 1)
    with pytest.raises(StoreUnavailable, match="2 of its 5 members answered in time, and 3 must"):
        list(quorum().check())


@pytest.mark.nightly
def test_a_forked_child_has_threads_of_its_own(on_quorum: None) -> None:
    mine = taken("video:1", renew=True, ttl=RENEWED)

    def child() -> list[object]:
        own = taken("video:2", ttl=RENEWED, renew=True)
        until(lambda: own._entry.until - own.ttl > 0 and own.remaining > 0)
        return [own.held, own.extend(), own.release(), mine.held]

    assert in_child(child) == [True, True, True, False]
    assert mine.extend()
    assert mine.release()


GREEN = """
import time
from django_tasklock import lock, locks

def compute(seconds):
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        sum(range(1000))

counted = []
def others():
    while True:
        lease = locks.acquire("video:2", ttl=60, wait=None)
        sleep(0)
        lease.release()
        counted.append(1)
        sleep(0)

for _ in range(3):
    spawn(others)
with lock("video:1", ttl=3.0) as lease:
    while len(counted) < 20:
        sleep(0.01)
    compute(4)
    sleep(0.01)
    lease.assert_held()
print("held")
"""


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_greenlets_use_it_and_one_that_computes_keeps_its_lease(
    on_quorum: None, library: str
) -> None:
    assert run_in_greenlets(GREEN, library) == ["held"]


@pytest.mark.nightly
class TestOtherMembers(WholeContract):
    """Two servers and a database: the whole contract."""

    one_clock = False

    @pytest.fixture(autouse=True)
    def _mixed(
        self, five_servers: list[RedisServer], use_caches: UseCaches, sqlite_alias: str
    ) -> None:
        make_lease_table(sqlite_alias)
        caches, tasklock = members([server.url for server in five_servers[:2]])
        use_caches(
            {"default": CACHES["default"]} | caches,
            tasklock
            | {
                # No member is harmed: one that takes long has to wait for the processor.
                "default": quorum_store("abf", MEMBER_TIMEOUT=10.0),
                "f": database_store(sqlite_alias),
            },
        )

    # Its members number differently, and the lease may be over before they have taken one fence:
    # an outage is raised then.
    test_a_millisecond_is_a_ttl = None  # type: ignore[assignment]
    # Until a majority has the lease's fence, a list may show the greater one of a single member.
    test_listing_describes_leases_as_get_does = None  # type: ignore[assignment]

    def make_store(self) -> BaseStore:
        return stores["default"]

    def test_fences_grow_though_the_database_has_another_clock(self) -> None:
        store = self.make_store()
        assert store.supports_fence
        ahead = time.time_ns() // 1000 + 10**9
        granted("video:1", "a" * 22)
        until(lambda: stores["f"].raise_fence("video:1", "a" * 22, ahead))
        fences = [ahead]
        # Each time another member is held by somebody else, as far as it knows.
        for number, busy in enumerate("baf"):
            # Again and again: one that is slow may be granted the lease before only now.
            until(lambda: not any(stores[alias].clear("video:1") for alias in "abf"))
            stores[busy].acquire("video:1", "x" * 22, LONG, owner_record())
            fence = granted("video:1", f"{number}" * 22).fence
            assert fence is not None
            fences.append(fence)
        assert fences == sorted(set(fences))


@pytest.mark.nightly
def test_members_without_fences_that_can_be_raised_make_a_quorum_without_fences(
    use_caches: UseCaches,
) -> None:
    memory = {"BACKEND": "django_tasklock.stores.memory.MemoryStore"}
    use_caches(CACHES, {"default": quorum_store("abc"), **dict.fromkeys("abc", memory)})
    assert not quorum().supports_fence
    assert taken("video:1").fence is None
    assert quorum().next_fence() is None


@pytest.mark.nightly
def test_a_quorum_of_quorums(use_caches: UseCaches, five_servers: list[RedisServer]) -> None:
    caches, tasklock = members([server.url for server in five_servers])
    use_caches(
        {"default": CACHES["default"]} | caches,
        {"default": quorum_store(["abc", "d", "e"]), "abc": quorum_store("abc")} | tasklock,
    )
    lease = taken("video:1")
    assert locks.acquire("video:1") is None
    assert lease.extend()
    assert [info.name for info in locks.list()] == ["video:1"]
    assert lease.release()


@pytest.mark.nightly
class TestUsers:
    """What operators and tasks do, on a quorum with a dead member."""

    def test_the_command_lists_and_clears(self, five: Five) -> None:
        lease = taken("video:1")
        five.harm("killed", 4)
        out = io.StringIO()
        call_command("locks", "list", "--format=json", stdout=out)
        (row,) = json.loads(out.getvalue())
        assert (row["name"], row["token"], row["store"]) == ("video:1", lease.token, "default")
        call_command("locks", "clear", "video:1", "--noinput", stdout=io.StringIO())
        assert locks.get("video:1") is None

    @pytest.mark.django_db
    def test_the_admin_page_lists(self, five: Five, operator: Client) -> None:
        taken("video:1", ttl=600)
        five.harm("killed", 4)
        assert "video:1" in words_of(operator.get(LIST, {"store": "default"}))

    def test_a_task_runs_once(self, five: Five, redis_server: RedisServer) -> None:
        five.harm("paused", 4)
        runs: list[int] = []
        with mailroom(redis_server.url) as room:
            task = room.task(lambda self, job: runs.append(job), acks_late=True)
            task.delay(1)
            message = room.take()
            lease = taken("job:1")
            skipped = room.deliver(message)
            assert lease.release()
            task.delay(1)
            assert room.deliver(room.take())[0] == "SUCCESS"
        assert skipped[0] == "SUCCESS"
        assert runs == [1]
        assert locks.get("job:1") is None


@pytest.mark.nightly
def test_the_store_is_what_its_flags_say(on_quorum: None) -> None:
    store = quorum()
    assert isinstance(store, QuorumStore)
    assert (store.atomic_release, store.supports_listing, store.supports_fence) == (True,) * 3
    assert (store.supports_waiting, store.uses_cache) == (False, False)
