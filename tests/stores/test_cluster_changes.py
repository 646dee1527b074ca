"""A cluster whose slots move, and whose masters fail, while its locks are held and taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_tasklock import StoreUnavailable, locks
from django_tasklock._values.tokens import new_token
from django_tasklock.stores import stores
from django_tasklock.stores.base import Extension
from django_tasklock.stores.cluster import RedisClusterStore
from django_tasklock.stores.cluster.buckets import BUCKET_SLOTS, bucket_of
from tests.agent import Agent
from tests.clusters import PATIENT_MS, Cluster, ClusterNode
from tests.conftest import UseCaches
from tests.steps import LONG, Meanwhile, holder, taken, waiting
from tests.waiting import until

NAME = "video:1"
SLOT = BUCKET_SLOTS[bucket_of(NAME)]
SHORT_TIMEOUT_SECONDS = 0.6


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
    made.count()  # It knows who serves what.
    return made


def errors(node: ClusterNode, kind: str) -> int:
    """How many answers of this kind the node has given."""
    said = node.info("errorstats").get(f"errorstat_{kind}", "count=0")
    return int(said.removeprefix("count="))


def another(cluster: Cluster, node: ClusterNode) -> ClusterNode:
    return next(each for each in cluster.masters if each is not node)


class Migration:
    """A slot on its way from one master to another."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.source = cluster.master_of(SLOT)
        self.target = another(cluster, self.source)
        cluster.begin_migration(SLOT, self.source, self.target)

    def move_keys(self, most: int | None = None) -> int:
        return self.cluster.migrate_keys(SLOT, self.source, self.target, most)

    def end(self) -> None:
        self.move_keys()
        self.cluster.end_migration(SLOT, self.source, self.target)


Begin = Callable[[], Migration]


@pytest.fixture
def begin(changing: Cluster) -> Iterator[Begin]:
    """Begins a migration, which is ended after the test if the test has not."""
    begun: list[Migration] = []

    def made() -> Migration:
        begun.append(Migration(changing))
        return begun[-1]

    yield made
    for each in begun:
        if changing.master_of(SLOT) is not each.target:
            each.end()


def test_a_slot_that_has_moved_is_found(changing: Cluster, store: RedisClusterStore) -> None:
    lease = taken(NAME)
    source = changing.master_of(SLOT)
    target = another(changing, source)
    changing.move_slot(SLOT, target)
    assert lease.extend(ttl=LONG)
    assert errors(source, "MOVED") == 1
    assert holder(NAME).token == lease.token
    assert locks.acquire(NAME) is None
    assert lease.release()
    again = taken(NAME)
    assert again.fence is not None
    assert lease.fence is not None
    assert again.fence > lease.fence
    assert again.release()
    assert errors(source, "MOVED") == 1, "it was learned the first time"


@pytest.mark.nightly
def test_the_list_of_many_follows_moved_slots(changing: Cluster, store: RedisClusterStore) -> None:
    names = [f"video:{number}" for number in range(100)]
    for number, name in enumerate(names):
        taken(name, ttl=LONG + 10 * number)
    for slot in BUCKET_SLOTS[::4]:
        changing.move_slot(slot, another(changing, changing.master_of(slot)))
    assert [info.name for info in locks.list()] == names
    assert [info.name for info in locks.list(limit=7, offset=50)] == names[50:57]
    assert locks.count() == 100
    assert store.held(["video:3", "nothing", "video:99"]) == {"video:3", "video:99"}
    scanned = sorted(info.name for info in store.scan("video:1"))
    assert scanned == sorted(info.name for info in locks.list("video:1"))


def test_a_waiter_follows_a_slot_that_moves(changing: Cluster, store: RedisClusterStore) -> None:
    """In a process that does nothing else, so that only the server can tell it."""
    lease = taken(NAME)
    with Agent() as agent:
        agent.tell("acquire", name=NAME, ttl=LONG, wait=LONG)
        until(lambda: waiting(NAME) == 1)
        changing.move_slot(SLOT, another(changing, changing.master_of(SLOT)))
        assert lease.release()
        assert agent.answer()["fence"] > lease.fence
        assert agent.ask("release") is True


@pytest.mark.nightly
class TestWhileASlotMigrates:
    def test_before_its_keys_are_moved_a_lease_is_extended_where_it_is(
        self, store: RedisClusterStore, begin: Begin
    ) -> None:
        lease = taken(NAME)
        migration = begin()
        assert lease.extend(ttl=LONG)
        assert errors(migration.source, "ASK") == 0
        migration.end()

    def test_after_that_it_is_extended_where_it_goes(
        self, store: RedisClusterStore, begin: Begin
    ) -> None:
        lease = taken(NAME)
        migration = begin()
        assert migration.move_keys() == 3
        assert lease.extend(ttl=LONG)
        extensions = [Extension(NAME, lease.token, LONG, lease._entry.proof), *others()]
        assert store.extend_many(extensions) == [True, *[False] * 5]
        assert errors(migration.source, "ASK") >= 2
        migration.end()
        assert lease.release()

    def test_in_between_everything_waits(self, store: RedisClusterStore, begin: Begin) -> None:
        lease = taken(NAME)
        migration = begin()
        migration.move_keys(1)
        extending = Meanwhile(lambda: lease.extend(ttl=LONG))
        acquiring = Meanwhile(lambda: locks.acquire(NAME))
        until(lambda: errors(migration.source, "TRYAGAIN") >= 2)
        migration.end()
        assert extending.result() is True
        assert acquiring.result() is None
        assert lease.release()

    def test_a_release_waits_and_hands_over_to_the_waiter(
        self, store: RedisClusterStore, begin: Begin
    ) -> None:
        lease = taken(NAME)
        waiter = Meanwhile(lambda: locks.acquire(NAME, wait=LONG, ttl=LONG))
        until(lambda: holder(NAME).waiters == 1)
        migration = begin()
        migration.move_keys()
        releasing = Meanwhile(lease.release)
        until(lambda: errors(migration.source, "ASK") >= 2)
        migration.end()
        assert releasing.result() is True
        granted = waiter.result()
        assert granted is not None
        assert granted.release()

    def test_one_that_does_not_end_is_an_outage(
        self, changing: Cluster, use_caches: UseCaches, begin: Begin
    ) -> None:
        store = use(changing, use_caches, SOCKET_TIMEOUT=SHORT_TIMEOUT_SECONDS)
        lease = taken(NAME)
        migration = begin()
        migration.move_keys(1)
        for question in (
            lambda: locks.acquire(NAME),
            lambda: locks.get(NAME),
            lambda: locks.is_locked(NAME),
            lambda: lease.extend(ttl=LONG),
            lambda: locks.clear(NAME),
            lambda: store.extend_many([Extension(NAME, lease.token, LONG), *others()]),
        ):
            with pytest.raises(StoreUnavailable, match=r"TRYAGAIN|TryAgainError"):
                question()
        migration.end()
        assert lease.extend(ttl=LONG)


def others() -> list[Extension]:
    """Leases that nobody has, in other slots."""
    return [Extension(f"other:{number}", new_token(), LONG, b"nobody's") for number in range(5)]


class TestFailover:
    @pytest.fixture
    def cluster(self) -> Iterator[Cluster]:
        with Cluster.own() as cluster:
            yield cluster

    @pytest.mark.slow
    def test_leases_survive_it_and_fences_grow(
        self, cluster: Cluster, use_caches: UseCaches
    ) -> None:
        use(cluster, use_caches)
        lease = taken(NAME, ttl=LONG)
        waiter = Meanwhile(lambda: locks.acquire(NAME, wait=LONG, ttl=LONG))
        until(lambda: holder(NAME).waiters == 1)
        master = cluster.master_of(SLOT)
        replica = cluster.replica_of(master)
        until(lambda: replica.run("DBSIZE") == master.run("DBSIZE"))
        master.server.kill()
        # Nobody says "held" or "free" meanwhile: it is answered when the replica serves the slot.
        asked = Meanwhile(lambda: locks.acquire(NAME))
        cluster.until_promoted(replica)
        with_outage(asked)
        assert eventually(lambda: lease.extend(ttl=LONG))
        assert eventually(lease.release)
        granted = waiter.result(within=2 * LONG)
        assert granted is not None
        assert granted.fence is not None
        assert lease.fence is not None
        assert granted.fence > lease.fence
        assert granted.release()
        cluster.bring_back(master)
        # The old master is a replica now, and a graceful failover makes it the master again.
        lease = taken(NAME)
        again = Meanwhile(lambda: locks.acquire(NAME, wait=LONG, ttl=LONG))
        until(lambda: holder(NAME).waiters == 1)
        cluster.promote(master)
        assert eventually(lease.release)
        handed = again.result()
        assert handed is not None
        assert handed.release()
        assert locks.count() == 0

    @pytest.mark.nightly
    @pytest.mark.slow
    def test_a_master_that_hangs_is_left_for_its_replica(
        self, cluster: Cluster, use_caches: UseCaches
    ) -> None:
        use(cluster, use_caches, SOCKET_TIMEOUT=1.0)
        lease = taken(NAME, ttl=LONG)
        waiter = Meanwhile(lambda: locks.acquire(NAME, wait=LONG, ttl=LONG))
        until(lambda: holder(NAME).waiters == 1)
        master = cluster.master_of(SLOT)
        replica = cluster.replica_of(master)
        until(lambda: replica.run("DBSIZE") == master.run("DBSIZE"))
        hung = cluster.nodes.pop(cluster.nodes.index(master))
        hung.server.pause()
        cluster.until_promoted(replica)
        # Asked of the one that hangs first, and then of the one that has the slot by now.
        assert holder(NAME).token == lease.token
        assert lease.extend(ttl=LONG)
        assert lease.release()
        # It learned that before it could notice by itself.
        granted = waiter.result()
        assert granted is not None
        assert granted.release()

    @pytest.mark.nightly
    @pytest.mark.slow
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
        other = taken(NAME)
        assert other.fence is not None
        assert lease.fence is not None
        assert other.fence > lease.fence
        assert lease.extend(ttl=LONG) is False
        assert lease.release() is False
        assert other.release()

    @pytest.mark.nightly
    @pytest.mark.slow
    def test_with_replicas_a_lease_counts_only_when_one_has_it(
        self, cluster: Cluster, use_caches: UseCaches
    ) -> None:
        use(cluster, use_caches, REPLICAS=1)
        lease = taken(NAME, ttl=LONG)
        assert lease.extend(ttl=LONG)
        replica = cluster.replica_of(cluster.master_of(SLOT))
        assert replica.run("DBSIZE") >= 3
        replica.server.kill()
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
            locks.acquire(in_the_same_slot())
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
            lease.extend(ttl=LONG)


def in_the_same_slot() -> str:
    names = (f"again:{number}" for number in range(10_000))
    return next(name for name in names if bucket_of(name) == bucket_of(NAME))


def eventually(question: Callable[[], bool]) -> bool:
    """The answer, which may take more than one outage."""
    answers: list[bool] = []

    def known() -> bool:
        try:
            answers.append(question())
        except StoreUnavailable:
            return False
        return True

    until(known)
    return answers[-1]


def with_outage(asked: Meanwhile[Any]) -> None:
    """It was refused or unavailable, but not granted."""
    try:
        assert asked.result() is None
    except StoreUnavailable:
        pass


@pytest.mark.nightly
def test_nothing_is_known_of_a_cluster_that_is_not_there(use_caches: UseCaches) -> None:
    use_caches({}, {"default": {
        "BACKEND": "django_tasklock.stores.cluster.RedisClusterStore",
        "OPTIONS": {"LOCATION": "redis://127.0.0.1:1"},
    }})  # fmt: skip
    with pytest.raises(StoreUnavailable):
        locks.acquire(NAME)
    with pytest.raises(StoreUnavailable):
        locks.list()
    assert stores["default"].shard(NAME) == ""
