"""A cluster whose slots move, and whose masters fail, while its locks are held and taken."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from django_tasklock import StoreUnavailable, locks
from django_tasklock.stores import stores
from django_tasklock.stores.cluster import SLOTS, RedisClusterStore, bucket_of
from tests.clusters import PATIENT_MS, Cluster, ClusterNode
from tests.conftest import UseCaches
from tests.steps import LONG, Meanwhile, holder, renewed, taken
from tests.waiting import until

T = TypeVar("T")

NAME = "video:1"
SLOT = SLOTS[bucket_of(NAME)]


@pytest.fixture(scope="module")
def changing() -> Iterator[Cluster]:
    """A cluster whose slots these tests move; each leaves it whole."""
    with Cluster.own(3, 0, timeout_ms=PATIENT_MS) as cluster:
        yield cluster


@pytest.fixture
def store(changing: Cluster, use_caches: UseCaches) -> RedisClusterStore:
    return use(changing, use_caches)


def use(cluster: Cluster, use_caches: UseCaches, **options: object) -> RedisClusterStore:
    use_caches({}, {"default": cluster.settings(**options)})
    for node in cluster.masters:
        node.run("FLUSHALL")
        node.run("CONFIG", "RESETSTAT")
    made = stores["default"]
    assert isinstance(made, RedisClusterStore)
    assert made.count() == 0  # It knows who serves what.
    return made


def errors(node: ClusterNode, kind: str) -> int:
    """How many answers of this kind the node has given."""
    said = node.info("errorstats").get(f"errorstat_{kind}", "count=0")
    return int(said.removeprefix("count="))


def another(cluster: Cluster, node: ClusterNode) -> ClusterNode:
    return next(each for each in cluster.masters if each is not node)


class TestMovingSlots:
    def test_one_that_has_moved_is_found(self, changing: Cluster, store: RedisClusterStore) -> None:
        lease, source = taken(NAME), changing.master_of(SLOT)
        changing.move_slot(SLOT, another(changing, source))
        assert lease.extend(ttl=LONG)
        assert errors(source, "MOVED") == 1
        assert holder(NAME).token == lease.token
        assert locks.acquire(NAME) is None
        assert lease.release()
        again = taken(NAME)
        assert (again.fence or 0) > (lease.fence or 0)
        assert again.release()
        assert errors(source, "MOVED") == 1, "it was learned the first time"

    @pytest.mark.nightly
    def test_leases_are_renewed_and_listed_while_slots_move(
        self, changing: Cluster, store: RedisClusterStore
    ) -> None:
        names = [f"video:{number}" for number in range(100)]
        leases = [taken(name, ttl=LONG + 10 * n) for n, name in enumerate(names)]
        kept = taken("kept", ttl=4.5, renew=True)
        for slot in SLOTS[::4]:
            changing.move_slot(slot, another(changing, changing.master_of(slot)))
            assert kept.held
        assert [info.name for info in locks.list("video:")] == names
        assert all(lease.extend(ttl=LONG) for lease in leases)
        renewed(kept)

    @pytest.mark.nightly
    def test_a_call_waits_for_one_whose_keys_are_half_moved_but_not_for_ever(
        self, changing: Cluster, use_caches: UseCaches
    ) -> None:
        use(changing, use_caches, SOCKET_TIMEOUT=2.0)
        lease, source = taken(NAME), changing.master_of(SLOT)
        target = another(changing, source)
        changing.begin_migration(SLOT, source, target)
        changing.migrate_keys(SLOT, source, target, 1)
        for question in (lambda: locks.get(NAME), lambda: locks.acquire(NAME)):
            with pytest.raises(StoreUnavailable):
                question()
        refused = errors(source, "TRYAGAIN") + errors(source, "ASK")
        extending = Meanwhile(lambda: lease.extend(ttl=LONG))
        until(lambda: errors(source, "TRYAGAIN") + errors(source, "ASK") > refused)
        changing.migrate_keys(SLOT, source, target)
        changing.end_migration(SLOT, source, target)
        assert extending.result() is True
        assert locks.acquire(NAME) is None
        assert lease.release()

    def test_nodes_that_do_not_agree_are_named(
        self, changing: Cluster, use_caches: UseCaches
    ) -> None:
        """And not the store, as where `RedisStore` has met a cluster."""
        use(changing, use_caches, SOCKET_TIMEOUT=0.3)
        masters = changing.masters
        owner = changing.master_of(SLOT)
        try:
            for node in masters:
                other = another(changing, node) if node is owner else owner
                node.run("CLUSTER", "SETSLOT", SLOT, "NODE", other.id)
            with pytest.raises(
                StoreUnavailable, match=rf"no node served the slot {SLOT} for 0.3 s"
            ):
                locks.acquire(NAME)
        finally:
            for node in masters:
                node.run("CLUSTER", "SETSLOT", SLOT, "NODE", owner.id)


@pytest.mark.slow
class TestFailover:
    @pytest.fixture
    def cluster(self) -> Iterator[Cluster]:
        with Cluster.own() as cluster:
            yield cluster

    def test_leases_survive_it_and_fences_grow(
        self, cluster: Cluster, use_caches: UseCaches
    ) -> None:
        use(cluster, use_caches)
        lease = taken(NAME, ttl=LONG)
        waiter = Meanwhile(lambda: eventually(lambda: locks.acquire(NAME, wait=LONG, ttl=LONG)))
        master = cluster.master_of(SLOT)
        replica = cluster.replica_of(master)
        until(lambda: replica.run("DBSIZE") == master.run("DBSIZE"))
        master.server.kill()
        # Nobody says "held" or "free" meanwhile: it is answered when the replica serves the slot.
        asked = Meanwhile(lambda: locks.acquire(NAME))
        cluster.until_promoted(replica)
        with contextlib.suppress(StoreUnavailable):
            assert asked.result() is None
        assert eventually(lambda: lease.extend(ttl=LONG))
        assert eventually(lease.release)
        granted = waiter.result(within=2 * LONG)
        assert granted is not None
        assert (granted.fence or 0) > (lease.fence or 0)
        assert granted.release()

    @pytest.mark.nightly
    def test_a_master_that_hangs_is_left_for_its_replica(
        self, cluster: Cluster, use_caches: UseCaches
    ) -> None:
        use(cluster, use_caches, SOCKET_TIMEOUT=1.0)
        lease = taken(NAME, ttl=LONG)
        master = cluster.master_of(SLOT)
        replica = cluster.replica_of(master)
        until(lambda: replica.run("DBSIZE") == master.run("DBSIZE"))
        hung = cluster.nodes.pop(cluster.nodes.index(master))
        hung.server.pause()
        cluster.until_promoted(replica)
        # The one that hangs is asked once more; then somebody else is asked who has the slot.
        with pytest.raises(StoreUnavailable):
            locks.get(NAME)
        assert holder(NAME).token == lease.token
        assert lease.release()
        hung.server.resume()

    @pytest.mark.nightly
    def test_what_the_replica_missed_is_lost_and_noticed(
        self, cluster: Cluster, use_caches: UseCaches
    ) -> None:
        """Failover without the replica's acknowledgement: the docs say what that means."""
        use(cluster, use_caches)
        master = cluster.master_of(SLOT)
        replica = cluster.replica_of(master)
        # Its link to the master is cut, and cannot be made again.
        replica.run("CONFIG", "SET", "masterauth", "wrong")
        master.run("CLIENT", "KILL", "TYPE", "replica")
        until(lambda: replica.info("replication")["master_link_status"] == "down")
        lease = taken(NAME, ttl=LONG)
        master.server.kill()
        cluster.until_promoted(replica)
        assert lease.held, "nobody has told its holder"
        other = eventually(lambda: taken(NAME))
        assert (other.fence or 0) > (lease.fence or 0)
        assert lease.extend(ttl=LONG) is False
        assert lease.release() is False
        assert other.release()

    @pytest.mark.nightly
    def test_with_replicas_a_lease_counts_only_when_one_has_it(
        self, cluster: Cluster, use_caches: UseCaches
    ) -> None:
        use(cluster, use_caches, REPLICAS=1)
        lease = taken(NAME, ttl=LONG)
        assert lease.extend(ttl=LONG)
        replica = cluster.replica_of(cluster.master_of(SLOT))
        replica.server.kill()
        names = (f"again:{number}" for number in range(10_000))
        beside = next(name for name in names if bucket_of(name) == bucket_of(NAME))
        for question in (lambda: locks.acquire(beside), lambda: lease.extend(ttl=LONG)):
            with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
                question()


def eventually(question: Callable[[], T]) -> T:
    """The answer, which may take more than one outage."""
    answers: list[T] = []

    def known() -> bool:
        with contextlib.suppress(StoreUnavailable):
            answers.append(question())
        return bool(answers)

    until(known)
    return answers[-1]


def test_a_cluster_that_is_not_there_is_an_outage(use_caches: UseCaches) -> None:
    use_caches({}, {"default": {
        "BACKEND": "django_tasklock.stores.cluster.RedisClusterStore",
        "OPTIONS": {
            "LOCATION": ["redis://127.0.0.1:1", "redis://127.0.0.1:2"], "SOCKET_TIMEOUT": 0.3,
        },
    }})  # fmt: skip
    began = time.monotonic()
    for question in (lambda: locks.acquire(NAME), locks.list, locks.count):
        with pytest.raises(StoreUnavailable):
            question()
    assert time.monotonic() - began < 5
