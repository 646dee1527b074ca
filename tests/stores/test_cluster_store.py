"""The store on a cluster beyond the contract: its keys, what spans several of its buckets, and what
it says of its masters."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from django_tasklock import StoreUnavailable, locks
from django_tasklock._values.processes import OfProcess
from django_tasklock._values.tokens import new_token
from django_tasklock.operators.reservations import key_of
from django_tasklock.stores import stores
from django_tasklock.stores.base import Extension, Grant, Note
from django_tasklock.stores.cluster import BUCKETS, SLOTS, TAGS, RedisClusterStore, bucket_of
from django_tasklock.stores.records import FREE, KEEP, Change, Held, new_record
from tests.clusters import Cluster, ClusterNode, require_cluster_server
from tests.conftest import UseCaches
from tests.steps import LONG, RENEWED, holder, in_child, renewed, taken
from tests.store_cases import own_prefix
from tests.waiting import until

MANY_NAMES = [f"video:{number}" for number in range(300)]


@pytest.fixture
def store(redis_cluster: Cluster, use_caches: UseCaches) -> RedisClusterStore:
    use_caches({}, {"default": redis_cluster.settings() | {"KEY_PREFIX": own_prefix()}})
    made = stores["default"]
    assert isinstance(made, RedisClusterStore)
    return made


def on_each(cluster: Cluster) -> dict[ClusterNode, str]:
    """A name of a lock on each master."""
    found: dict[ClusterNode, str] = {}
    for name in MANY_NAMES:
        found.setdefault(cluster.master_of(SLOTS[bucket_of(name)]), name)
    assert len(found) == len(cluster.masters)
    return found


class TestKeys:
    def test_each_bucket_has_its_part_of_the_slots(self) -> None:
        assert sorted(SLOTS) == SLOTS
        assert [slot * BUCKETS // 16384 for slot in SLOTS] == [*range(BUCKETS)]

    def test_the_key_of_a_lock_is_that_of_the_page(self, redis_cluster: Cluster) -> None:
        """Processes of two releases must agree about it."""
        assert TAGS[bucket_of("video:1")] == "21"
        node = redis_cluster.nodes[0]
        said = [node.run("CLUSTER", "KEYSLOT", f"lock:{{{tag}}}:a{{b}}") for tag in TAGS]
        assert said == SLOTS

    def test_permits_and_the_reservation_of_a_job_are_beside_the_lock(self) -> None:
        for name in MANY_NAMES:
            job, permit = key_of("videos.tasks.process", name), f"{name}#12"
            assert bucket_of(name) == bucket_of(f" {job}") == bucket_of(permit)
        assert bucket_of("a#01") != bucket_of("a"), "no permit is called so"

    def test_locks_are_spread_over_all_masters(self, redis_cluster: Cluster) -> None:
        masters = [redis_cluster.master_of(slot) for slot in SLOTS]
        of_each = [masters[bucket_of(name)] for name in MANY_NAMES]
        assert min(map(of_each.count, redis_cluster.masters)) > len(MANY_NAMES) / 5


def test_a_bucket_is_keys_and_a_client(
    redis_cluster: Cluster, use_caches: UseCaches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a process has of its own, such as connections and listeners, is not there 64 times."""
    declared: list[object] = []
    made: list[object] = []
    begin = OfProcess.__init__

    def count(self: OfProcess[Any], make: Callable[[], Any], *leave: Any) -> None:
        def make_and_count() -> Any:
            made.append(make())
            return made[-1]

        declared.append(self)
        begin(self, make_and_count, *leave)

    monkeypatch.setattr(OfProcess, "__init__", count)
    use_caches({}, {"default": redis_cluster.settings() | {"KEY_PREFIX": own_prefix()}})
    store = stores["default"]
    assert isinstance(store, RedisClusterStore)
    token = new_token()
    assert isinstance(store.acquire(["video:1"], token, LONG, {}), Grant)
    # Connections to a node that says who has the slot, and to the master that has it.
    assert 0 < len(made) <= 2
    assert store.count() == 1
    assert store.release("video:1", token)
    masters = len(redis_cluster.masters)
    assert len(made) <= masters + 1
    assert len(declared) < BUCKETS / 2
    first = store.buckets[0]
    assert all(each.encoding is first.encoding for each in store.buckets)
    assert len({each.keys.index for each in store.buckets}) == BUCKETS


class TestSeveralBuckets:
    def test_a_list_is_in_the_order_in_which_leases_end(self, store: RedisClusterStore) -> None:
        names = ["a:x", *(f"b:{number}" for number in range(40)), "a:y", "a:z"]
        for number, name in enumerate(names):
            taken(name, ttl=LONG + 10 * number)
        for limit, offset in ((None, 0), (1, 0), (10, 30), (5, 40), (5, 99)):
            end = None if limit is None else offset + limit
            found = [info.name for info in locks.list(limit=limit, offset=offset)]
            assert found == names[offset:end]
        assert [info.name for info in locks.list("a:")] == ["a:x", "a:y", "a:z"]
        assert (locks.count(), locks.count("b:"), locks.count("c:")) == (43, 40, 0)

    def test_reservations_are_listed(self, store: RedisClusterStore) -> None:
        for number, name in enumerate(MANY_NAMES[:20]):
            assert store.reserve(key_of("task", name), f"id-{number}", LONG + 10 * number) is None
        found = [each.text for each in store.reservations()]
        assert found == [f"id-{number}" for number in range(20)]

    @pytest.mark.nightly
    def test_a_note_in_another_bucket_is_written_with_the_lease(
        self, store: RedisClusterStore
    ) -> None:
        for number in range(20):
            token, note = new_token(), Note(f"run {number}", "started", LONG)
            grant = store.acquire(["video:1"], token, LONG, {}, note)
            assert isinstance(grant, Grant)
            assert grant.noted
            assert store.get_note(note.key) == "started"
            ended = note._replace(text="ended")
            assert not store.release("video:1", new_token(), ended)
            assert store.get_note(note.key) == "started"
            assert store.release("video:1", token, ended)
            assert store.get_note(note.key) == "ended"

    def test_several_changes_are_made_or_refused(self, store: RedisClusterStore) -> None:
        first, second, taken_one = "a", "b", "c"
        assert len({*map(bucket_of, "abc")}) == 3
        records = {name: new_record(new_token(), {}) for name in "abc"}
        held = Held(taken(taken_one).token)
        changes = [Change(name, FREE, records[name], LONG) for name in (first, second)]
        refused = store.put([*changes, Change(taken_one, FREE, KEEP)])
        assert not refused.made
        assert [entry is None for entry in refused.entries] == [True, True, False]
        done = store.put([*changes, Change(taken_one, held, None)])
        assert done.made
        assert [entry is None for entry in done.entries] == [False, False, True]

    def test_what_was_made_is_undone_where_a_later_change_is_refused(
        self, store: RedisClusterStore
    ) -> None:
        changes = [Change(name, FREE, new_record(new_token(), {}), LONG) for name in "abc"]
        taken("c")
        done = store.put(changes)
        assert not done.made
        assert [entry is None for entry in done.entries] == [True, True, False]
        assert [locks.is_locked(name) for name in "abc"] == [False, False, True]


@pytest.mark.slow
def test_leases_at_masters_that_answer_are_renewed_beside_one_that_hangs(
    use_caches: UseCaches,
) -> None:
    """The renewal waits for it for less than a lease lasts, however patient other calls are."""
    require_cluster_server()
    with Cluster.own(3, 0, full_coverage=False, timeout_ms=60_000) as cluster:
        use_caches({}, {"default": cluster.settings(SOCKET_TIMEOUT=LONG)})
        kept = {
            node: taken(name, ttl=RENEWED, renew=True) for node, name in on_each(cluster).items()
        }
        silent, *others = kept
        silent.server.pause()
        until(lambda: not kept[silent].held)
        for node in others:
            renewed(kept[node])
            assert kept[node].release()
        silent.server.resume()


@pytest.mark.nightly
class TestSilentNode:
    @pytest.fixture
    def cluster(self) -> Iterator[Cluster]:
        with Cluster.own(3, 0, full_coverage=False, timeout_ms=60_000) as cluster:
            yield cluster

    @pytest.mark.slow
    def test_the_leases_of_others_are_extended_and_nothing_is_said_of_its_own(
        self, cluster: Cluster, use_caches: UseCaches
    ) -> None:
        use_caches({}, {"default": cluster.settings(SOCKET_TIMEOUT=1.0)})
        store, names = stores["default"], on_each(cluster)
        silent, *others = names
        leases = {name: taken(name) for name in MANY_NAMES if name not in names.values()}
        kept = {node: taken(name, ttl=RENEWED, renew=True) for node, name in names.items()}
        batch = [Extension(name, lease.token, LONG) for name, lease in leases.items()]
        silent.server.pause()
        began = time.monotonic()
        done = dict(zip(leases, store.extend_many(batch), strict=True))
        assert time.monotonic() - began < 10, "it is asked once, and not for each of its buckets"
        has = {slot: cluster.master_of(slot, others[0]) for slot in SLOTS}
        mine = [name for name in leases if has[SLOTS[bucket_of(name)]] is silent]
        assert done == {name: None if name in mine else True for name in leases}
        for question in (locks.list, locks.count, lambda: locks.acquire(names[silent])):
            with pytest.raises(StoreUnavailable):
                question()
        until(lambda: not kept[silent].held)
        for node in others:
            renewed(kept[node])
            assert kept[node].release()
        silent.server.resume()
        until(lambda: locks.acquire(names[silent]) is not None)
        assert leases[mine[0]].extend()


@pytest.mark.nightly
class TestProcess:
    def test_a_child_has_connections_of_its_own(self, store: RedisClusterStore) -> None:
        lease = taken("video:1")

        def in_the_child() -> list[bool]:
            own = [taken(name) for name in MANY_NAMES[2:20]]
            return [locks.acquire("video:1") is None, *(each.release() for each in own)]

        assert all(in_child(in_the_child))
        assert lease.release()

    # redis-py leaves a socket to the garbage collector if it is interrupted while it connects.
    @pytest.mark.filterwarnings(
        "ignore:unclosed", "ignore::pytest.PytestUnraisableExceptionWarning"
    )
    def test_an_interrupted_call_leaves_no_reply_to_the_next_one(
        self, store: RedisClusterStore
    ) -> None:
        class Limit(Exception):
            """As a soft time limit."""

        def interrupt(*_: object) -> None:
            raise Limit

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            for number in range(100):
                name = MANY_NAMES[number]
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.00005 * (number % 20 + 1))
                    store.find_many(MANY_NAMES[:50])
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Limit:
                    pass
                lease = taken(name)
                assert holder(name).token == lease.token
                assert lease.release()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


@pytest.mark.nightly
class TestCheck:
    def test_says_what_all_masters_have_in_common(self, store: RedisClusterStore) -> None:
        (finding,) = store.check()
        assert (finding.id, finding.serious) == ("replication", False)
        assert finding.message.startswith("every master: ")
        assert 0 < (store.uptime() or 0) < 24 * 3600

    def test_the_doctor_finds_keys_that_never_end(
        self, store: RedisClusterStore, redis_cluster: Cluster
    ) -> None:
        taken("video:1")
        node = redis_cluster.master_of(SLOTS[bucket_of("video:2")])
        node.run("SET", store.key("video:2"), "mine")
        assert [info.name for info in store.endless()] == ["video:2"]
        out = StringIO()
        with pytest.raises(SystemExit):
            call_command("locks", "doctor", stdout=out)
        assert "video:2" in out.getvalue()
        assert locks.clear("video:2")
