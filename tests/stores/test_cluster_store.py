"""The store on a cluster beyond the contract: its waiters, its renewal, its lists and its faces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from django_tasklock import LeaseLost, StoreUnavailable, lock, locks
from django_tasklock._engine.keeper import keeper_of
from django_tasklock._values.tokens import new_token
from django_tasklock.operators.reservations import key_of
from django_tasklock.stores import stores
from django_tasklock.stores.base import Extension, Note
from django_tasklock.stores.cluster import RedisClusterStore, cluster_listing
from django_tasklock.stores.cluster.buckets import BUCKET_SLOTS, BUCKETS, TAGS, bucket_of
from django_tasklock.stores.redis.pool import Connections
from tests.admin.conftest import LIST, client_with, operator, words_of
from tests.agent import Agent
from tests.clusters import Cluster, ClusterNode
from tests.conftest import UseCaches
from tests.steps import LONG, Meanwhile, holder, in_child, taken, waiting
from tests.store_cases import own_prefix
from tests.waiting import until

__all__ = ["client_with", "operator"]

MANY_NAMES = [f"video:{number}" for number in range(1000)]


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
        found.setdefault(cluster.master_of(BUCKET_SLOTS[bucket_of(name)]), name)
        if len(found) == len(cluster.masters):
            break
    return found


class RoundTrips:
    """How often the store's connections were written to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for method in ("exchange", "exchange_many"):
            self._watch(monkeypatch, method, getattr(Connections, method))

    def _watch(self, monkeypatch: pytest.MonkeyPatch, method: str, original: Any) -> None:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(Connections, method, counted)


@pytest.fixture
def round_trips(store: RedisClusterStore, monkeypatch: pytest.MonkeyPatch) -> RoundTrips:
    with lock("video:0"):
        for name in MANY_NAMES[:200]:
            locks.get(name)  # Connected, and the scripts are known.
    held = [taken(name) for name in MANY_NAMES[:200]]
    locks.list()
    locks.count()
    for lease in held:
        lease.release()
    store.extend_many([Extension(name, new_token(), LONG, b"-") for name in MANY_NAMES])
    return RoundTrips(monkeypatch)


class TestKeys:
    def test_each_bucket_has_its_part_of_the_slots(self) -> None:
        assert list(BUCKET_SLOTS) == sorted(BUCKET_SLOTS)
        assert [slot * BUCKETS // 16384 for slot in BUCKET_SLOTS] == list(range(BUCKETS))

    def test_slots_are_those_of_the_server(self, redis_cluster: Cluster) -> None:
        node = redis_cluster.nodes[0]
        said = [node.run("CLUSTER", "KEYSLOT", b"lock:{%b}:a{b}" % tag) for tag in TAGS]
        assert said == list(BUCKET_SLOTS)

    def test_all_keys_of_a_lock_and_of_its_job_are_in_one_slot(
        self, store: RedisClusterStore, redis_cluster: Cluster
    ) -> None:
        keyspace, name = store.keyspace, "a{b}:c"
        keys = [*keyspace.keys(name), keyspace.cleared_key(name)]
        keys += keyspace.note_keys(key_of("videos.tasks.process", name))
        node = redis_cluster.nodes[0]
        assert len({node.run("CLUSTER", "KEYSLOT", key) for key in keys}) == 1
        assert keyspace.are_together(name, key_of("videos.tasks.process", name))

    def test_locks_are_spread_over_all_masters(
        self, store: RedisClusterStore, redis_cluster: Cluster
    ) -> None:
        shards = [store.shard(name) for name in MANY_NAMES if locks.get(name) is None]
        assert set(shards) == {"0", "1", "2"}
        assert min(map(shards.count, "012")) > len(MANY_NAMES) / 5


class TestRoundTrips:
    def test_one_for_each_verb(self, store: RedisClusterStore, round_trips: RoundTrips) -> None:
        lease = taken("video:0")
        assert lease.extend()
        assert locks.is_locked("video:0")
        assert lease.release()
        assert round_trips.count == 4

    @pytest.mark.nightly
    def test_one_for_each_node_to_renew_a_thousand(
        self, store: RedisClusterStore, round_trips: RoundTrips
    ) -> None:
        batch = [Extension(name, new_token(), LONG, b"-") for name in MANY_NAMES]
        assert store.extend_many(batch) == [False] * len(batch)
        assert round_trips.count == 3

    @pytest.mark.nightly
    def test_two_for_each_node_to_list(
        self, store: RedisClusterStore, round_trips: RoundTrips
    ) -> None:
        for name in MANY_NAMES[:100]:
            taken(name)
        round_trips.count = 0
        assert len(locks.list()) == 100
        assert round_trips.count == 6
        assert locks.count() == 100
        assert round_trips.count == 9


class TestLists:
    def test_are_merged_whatever_the_page(self, store: RedisClusterStore) -> None:
        names = [f"{'a' if number % 3 else 'b'}:{number}" for number in range(300)]
        for number, name in enumerate(names):
            taken(name, ttl=LONG + number)
        for limit, offset in (
            (None, 0),
            (1, 0),
            (10, 0),
            (100, 150),
            (100, 250),
            (5, 299),
            (5, 400),
        ):
            end = None if limit is None else offset + limit
            assert [info.name for info in locks.list(limit=limit, offset=offset)] == names[
                offset:end
            ]
        ours = [name for name in names if name.startswith("b:")]
        assert [info.name for info in locks.list("b:", limit=20, offset=30)] == ours[30:50]
        assert (locks.count(), locks.count("b:"), locks.count("c:")) == (300, 100, 0)

    @pytest.mark.nightly
    @pytest.mark.parametrize("page", [1, 16])
    def test_are_filled_up_where_keys_were_deleted_by_hand(
        self,
        store: RedisClusterStore,
        redis_cluster: Cluster,
        page: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(cluster_listing, "SHORTEST_PAGE", page)
        # In two buckets, so that each has several pages.
        names = [name for name in MANY_NAMES if bucket_of(name) in (3, 40)]
        assert len(names) > 20
        for number, name in enumerate(names):
            taken(name, ttl=LONG + number)
        for name in names[:12]:
            redis_cluster.master_of(BUCKET_SLOTS[bucket_of(name)]).run("DEL", store.key(name))
        assert [info.name for info in locks.list(limit=15)] == names[12:27]
        assert [info.name for info in locks.list()] == names[12:]

    @pytest.mark.nightly
    def test_reservations_of_all_buckets(self, store: RedisClusterStore) -> None:
        for number, name in enumerate(MANY_NAMES[:50]):
            assert store.reserve(key_of("task", name), f"id-{number}", LONG + number) is None
        found = [each.text for each in store.reservations()]
        assert found == [f"id-{number}" for number in range(50)]
        assert [each.text for each in store.reservations(limit=3)] == found[:3]
        assert store.reservations(limit=0) == []


@pytest.mark.nightly
class TestNotes:
    def test_are_written_with_a_lock_in_another_slot(self, store: RedisClusterStore) -> None:
        for number in range(20):
            note = Note(f"run {number}", "started", LONG)
            token = new_token()
            grant = store.acquire_with_note("video:1", token, LONG, {}, note)
            together = store.keyspace.are_together("video:1", note.key)
            assert grant.noted is together  # type: ignore[union-attr]
            store.set_note(note)
            ended = note._replace(text="ended")
            assert store.release_with_note("video:1", token, None, ended)
            assert store.get_note(note.key) == "ended"
            assert not store.release_with_note("video:1", token, None, note)
            assert store.get_note(note.key) == "ended"


class TestWaiting:
    def test_in_order_on_every_node(self, store: RedisClusterStore, redis_cluster: Cluster) -> None:
        names = on_each(redis_cluster).values()
        assert len(names) == 3
        leases = {name: taken(name) for name in names}
        came: dict[str, list[int]] = {name: [] for name in names}
        threads = []
        for number in range(4):
            for name in names:

                def wait(name: str = name, number: int = number) -> None:
                    lease = taken(name, wait=LONG)
                    came[name].append(number)
                    assert lease.release()

                threads.append(Meanwhile(wait))
                until(lambda name=name, number=number: waiting(name) == number + 1)  # type: ignore[misc]
        for lease in leases.values():
            assert lease.release()
        for thread in threads:
            thread.result()
        assert list(came.values()) == [[0, 1, 2, 3]] * 3

    @pytest.mark.nightly
    def test_polls_nothing(self, store: RedisClusterStore, round_trips: RoundTrips) -> None:
        lease = taken("video:1")
        thread = Meanwhile(lambda: locks.acquire("video:1", wait=LONG))
        until(lambda: waiting("video:1") == 1)
        asked = round_trips.count
        thread.join(1.5)
        assert round_trips.count == asked
        assert lease.release()
        granted = thread.result()
        assert granted is not None
        assert round_trips.count == asked + 1, "the release alone"
        assert granted.release()

    @pytest.mark.nightly
    def test_a_waiter_that_was_killed_is_passed_over(self, store: RedisClusterStore) -> None:
        lease = taken("video:1")
        with Agent() as agent:
            agent.tell("acquire", name="video:1", ttl=LONG, wait=LONG)
            until(lambda: waiting("video:1") == 1)
            thread = Meanwhile(lambda: locks.acquire("video:1", wait=LONG))
            until(lambda: waiting("video:1") == 2)
            agent.kill()
        assert lease.release()
        granted = thread.result()
        assert granted is not None
        assert granted.release()

    @pytest.mark.nightly
    def test_it_ends_with_the_lease_of_a_holder_that_is_gone(
        self, store: RedisClusterStore
    ) -> None:
        store.acquire("video:1", new_token(), 0.5, {})
        assert taken("video:1", wait=LONG).release()


@pytest.mark.nightly
class TestSilentNode:
    @pytest.fixture
    def cluster(self) -> Iterator[Cluster]:
        with Cluster.own(3, 0, full_coverage=False, timeout_ms=60_000) as cluster:
            yield cluster

    @pytest.mark.slow
    def test_keeps_no_lease_of_another_from_being_renewed(
        self, cluster: Cluster, use_caches: UseCaches
    ) -> None:
        use_caches({}, {"default": cluster.settings(SOCKET_TIMEOUT=7.0)})
        names = on_each(cluster)
        leases = {node: taken(name, ttl=4.5, renew=True) for node, name in names.items()}
        silent, *others = leases
        silent.server.pause()
        until(lambda: not leases[silent].held)
        # That took a whole ttl, and a call to the silent node takes longer.
        for node in others:
            assert leases[node].held
            assert holder(names[node]).token == leases[node].token
        with pytest.raises(StoreUnavailable):
            locks.list()
        with pytest.raises(StoreUnavailable):
            locks.acquire(names[silent])
        for node in others:
            assert leases[node].held
            assert leases[node].release()
        silent.server.resume()
        with pytest.raises(LeaseLost):
            leases[silent].assert_held()
        until(lambda: locks.acquire(names[silent]) is not None)

    def test_each_has_its_own_renewal(self, store: RedisClusterStore) -> None:
        leases = [taken(name, renew=True) for name in MANY_NAMES[:50]]
        # But for the one that was taken before all was known.
        for lease in leases[1:]:
            assert lease.token in keeper_of(store, lease.name).table
        assert len({id(keeper_of(store, lease.name)) for lease in leases}) == 3
        for lease in leases:
            assert lease.release()


@pytest.mark.nightly
class TestFork:
    def test_a_child_has_connections_of_its_own(self, store: RedisClusterStore) -> None:
        lease = taken("video:1", renew=True)
        thread = Meanwhile(lambda: locks.acquire("video:1", wait=LONG))
        until(lambda: waiting("video:1") == 1)

        def in_the_child() -> list[bool]:
            own = [taken(name) for name in MANY_NAMES[2:20]]
            return [locks.acquire("video:1") is None, *(each.release() for each in own)]

        assert all(in_child(in_the_child))
        assert lease.release()
        granted = thread.result()
        assert granted is not None, "the child has not ended its parent's subscription"
        assert granted.release()


@pytest.mark.nightly
class TestFaces:
    def test_the_command(self, store: RedisClusterStore) -> None:
        taken("video:1", ttl=LONG)
        taken("video:2", ttl=2 * LONG)
        out = StringIO()
        call_command("locks", "list", "--format", "json", stdout=out)
        rows = [(row["name"], row["key"]) for row in json.loads(out.getvalue())]
        assert rows == [(name, store.key(name)) for name in ("video:1", "video:2")]
        call_command("locks", "clear", "video:1", "--noinput", stdout=out)
        assert not locks.is_locked("video:1")

    @pytest.mark.django_db
    def test_the_admin_page(self, store: RedisClusterStore, operator: Client) -> None:
        taken("video:1", ttl=LONG)
        words = words_of(operator.get(LIST))
        assert "video:1" in words

    def test_check_says_what_all_masters_have_in_common(self, store: RedisClusterStore) -> None:
        (finding,) = [each for each in store.check() if each.id != "latency"]
        assert finding.id == "replication"
        assert not finding.serious
        assert finding.message.startswith("of every master: ")

    def test_the_doctor(self, store: RedisClusterStore) -> None:
        out = StringIO()
        call_command("locks", "doctor", stdout=out)
        assert "a failover may forget the last leases" in out.getvalue()
