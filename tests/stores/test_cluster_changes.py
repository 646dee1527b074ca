"""A cluster whose slots move, and whose masters fail, while its locks are held and taken."""

from __future__ import annotations

import time
from collections.abc import Iterator
from io import StringIO
from typing import Any
from urllib.parse import quote

import pytest
from django.core.management import call_command

from django_tasklock import StoreUnavailable, locks
from django_tasklock.stores import stores
from django_tasklock.stores.cluster import SLOTS, bucket_of
from tests.clusters import PATIENT_MS, Cluster, ClusterNode
from tests.conftest import UseCaches
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, answered, holder, renewed, taken, unavailable
from tests.store_cases import own_prefix, redis_cache
from tests.tls import Tls
from tests.waiting import until

NAME = "video:1"
SLOT = SLOTS[bucket_of(NAME)]


@pytest.fixture(scope="module")
def of_file() -> Iterator[Cluster]:
    """A cluster whose slots these tests move; each leaves it whole."""
    with Cluster.own(3, 0, timeout_ms=PATIENT_MS) as cluster:
        yield cluster


@pytest.fixture
def changing(of_file: Cluster, use_caches: UseCaches) -> Cluster:
    use(of_file, use_caches)
    return of_file


@pytest.fixture
def cluster(use_caches: UseCaches) -> Iterator[Cluster]:
    """One with replicas, whose masters a test may kill."""
    with Cluster.own() as cluster:
        use(cluster, use_caches)
        yield cluster


def use(cluster: Cluster, use_caches: UseCaches, **options: object) -> None:
    use_caches({}, {"default": cluster.settings(**options)})
    for node in cluster.masters:
        node.run("FLUSHALL")
        node.run("CONFIG", "RESETSTAT")
    assert stores["default"].count() == 0  # It knows who serves what.


def errors(node: ClusterNode, *kinds: str) -> int:
    """How many answers of these kinds the node has given."""
    said = node.info("errorstats")
    return sum(
        int(said.get(f"errorstat_{kind}", "count=0").removeprefix("count=")) for kind in kinds
    )


def another(cluster: Cluster, node: ClusterNode) -> ClusterNode:
    return next(each for each in cluster.masters if each is not node)


def replica_in_step(cluster: Cluster, master: ClusterNode) -> ClusterNode:
    """The replica of a master, once it has all of its keys."""
    replica = cluster.replica_of(master)
    until(lambda: replica.run("DBSIZE") == master.run("DBSIZE"))
    return replica


def test_one_that_has_moved_is_found(changing: Cluster) -> None:
    # Given a lease whose slot moves to another master
    lease, source = taken(NAME), changing.master_of(SLOT)
    changing.move_slot(SLOT, another(changing, source))

    # I expect its holder to find it there
    assert lease.extend(ttl=LONG)
    assert errors(source, "MOVED") == 1
    assert holder(NAME).token == lease.token

    # And others to be refused, and to have it with a greater fence when it is released
    assert locks.acquire(NAME) is None
    assert lease.release()
    again = taken(NAME)
    assert (again.fence or 0) > (lease.fence or 0)
    assert again.release()
    assert errors(source, "MOVED") == 1, "it was learned the first time"


@pytest.mark.nightly
def test_leases_are_renewed_and_listed_while_slots_move(changing: Cluster) -> None:
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
    changing: Cluster, use_caches: UseCaches
) -> None:
    use(changing, use_caches, SOCKET_TIMEOUT=2.0)
    lease, source = taken(NAME), changing.master_of(SLOT)
    target = another(changing, source)
    changing.begin_migration(SLOT, source, target)
    changing.migrate_keys(SLOT, source, target, 1)
    asks = (lambda: locks.get(NAME), lambda: locks.acquire(NAME))
    unavailable(*asks, says=rf"no node served the slot {SLOT} for")
    refused = errors(source, "TRYAGAIN", "ASK")
    extending = Meanwhile(lambda: lease.extend(ttl=LONG))
    until(lambda: errors(source, "TRYAGAIN", "ASK") > refused)
    changing.migrate_keys(SLOT, source, target)
    changing.end_migration(SLOT, source, target)
    assert extending.result() is True
    assert locks.acquire(NAME) is None
    assert lease.release()


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_leases_survive_a_failover_and_fences_grow(
    cluster: Cluster, use_caches: UseCaches, hangs: bool
) -> None:
    use(cluster, use_caches, SOCKET_TIMEOUT=1.0)
    lease = taken(NAME, ttl=LONG)
    waiter = Meanwhile(lambda: answered(lambda: locks.acquire(NAME, wait=LONG, ttl=LONG)))
    master = cluster.master_of(SLOT)
    replica = replica_in_step(cluster, master)
    if hangs:
        cluster.nodes.remove(master)
        master.server.pause()
    else:
        master.server.kill()
    # Nobody says "held" or "free" meanwhile: it is answered when the replica serves the slot.
    asked = Meanwhile(lambda: answered(lambda: locks.acquire(NAME)))
    cluster.until_promoted(replica)
    assert asked.result() is None
    assert answered(lambda: lease.extend(ttl=LONG))
    assert answered(lease.release)
    granted = waiter.result(within=2 * LONG)
    assert granted is not None
    assert (granted.fence or 0) > (lease.fence or 0)
    assert granted.release()
    if hangs:
        master.server.resume()


@pytest.mark.slow
@pytest.mark.nightly
def test_what_the_replica_missed_is_lost_and_noticed(cluster: Cluster) -> None:
    """Failover without the replica's acknowledgement: the docs say what that means."""
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
    other = answered(lambda: taken(NAME))
    assert (other.fence or 0) > (lease.fence or 0)
    assert lease.extend(ttl=LONG) is False
    assert lease.release() is False
    assert other.release()


@pytest.mark.slow
@pytest.mark.nightly
def test_with_replicas_a_lease_counts_only_when_one_has_it(
    cluster: Cluster, use_caches: UseCaches
) -> None:
    use(cluster, use_caches, REPLICAS=1)
    lease = taken(NAME, ttl=LONG)
    assert lease.extend(ttl=LONG)
    cluster.replica_of(cluster.master_of(SLOT)).server.kill()
    names = (f"again:{number}" for number in range(10_000))
    beside = next(name for name in names if bucket_of(name) == bucket_of(NAME))
    unavailable(lambda: locks.acquire(beside), lease.extend, says="0 of 1 replicas")


def test_a_cluster_that_is_not_there_is_an_outage(use_caches: UseCaches) -> None:
    on_cluster(use_caches, [f"redis://127.0.0.1:{n}" for n in (1, 2)], SOCKET_TIMEOUT=0.3)
    began = time.monotonic()
    unavailable(lambda: locks.acquire(NAME), locks.list, locks.count)
    assert time.monotonic() - began < 5


PASSWORD = "s3cret/&"


def on_cluster(use_caches: UseCaches, location: Any, **options: Any) -> None:
    """With keys that nothing else uses."""
    use_caches({}, {"default": {
        "BACKEND": "django_tasklock.stores.cluster.RedisClusterStore", "KEY_PREFIX": own_prefix(),
        "OPTIONS": {"LOCATION": location, **options},
    }})  # fmt: skip


def test_one_url_is_enough(use_caches: UseCaches, redis_cluster: Cluster) -> None:
    # Given the address of one node of six
    on_cluster(use_caches, redis_cluster.nodes[4].url)

    # I expect the locks of all masters to be had
    for number in range(10):
        assert taken(f"video:{number}").release()


@pytest.mark.nightly
def test_a_server_that_is_no_cluster_is_named(
    use_caches: UseCaches, redis_server: RedisServer
) -> None:
    on_cluster(use_caches, f"redis://127.0.0.1:{redis_server.port}")
    with pytest.raises(StoreUnavailable, match="cluster support disabled"):
        locks.acquire("video:1")


def test_a_cluster_under_the_plain_store_is_named(use_caches: UseCaches) -> None:
    """By its checks too, which take a lock with all its keys: one master takes any single key."""
    with Cluster.own(1, 0, timeout_ms=PATIENT_MS) as cluster:
        use_caches({"default": redis_cache(cluster.nodes[0].url)}, None)
        with pytest.raises(StoreUnavailable, match=r"is a Redis Cluster.* RedisClusterStore"):
            locks.acquire("video:1")
        (finding,) = stores["default"].check()
    assert finding.id == "write"
    assert "RedisClusterStore" in finding.message


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With TLS, and a password."""
    with (
        Tls.needed(tmp_path_factory.mktemp("tls")) as tls,
        Cluster.own(2, 0, tls=tls, password=PASSWORD, timeout_ms=PATIENT_MS) as cluster,
    ):
        yield cluster


@pytest.mark.nightly
def test_with_tls_and_a_password_locks_are_taken_and_listed(
    closed: Cluster, use_caches: UseCaches
) -> None:
    use_caches({}, {"default": closed.settings() | {"KEY_PREFIX": own_prefix()}})
    for number in range(6):
        assert taken(f"video:{number}").extend(ttl=LONG)
    assert locks.count() == len(locks.list()) == 6


@pytest.mark.nightly
def test_without_the_password_it_is_an_outage(closed: Cluster, use_caches: UseCaches) -> None:
    settings = closed.settings()
    locations = settings["OPTIONS"]["LOCATION"]
    wrong = [each.replace(quote(PASSWORD, safe=""), "wrong") for each in locations]
    settings["OPTIONS"]["LOCATION"] = wrong
    use_caches({}, {"default": settings})
    began = time.monotonic()
    unavailable(lambda: locks.acquire("video:1"), says=r"(?i)password|auth")
    assert time.monotonic() < began + 4, "it asked again, as where the cluster changes"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Cluster]:
    with Cluster.own(2, 0, timeout_ms=PATIENT_MS) as cluster:
        yield cluster


def as_worker(cluster: Cluster, use_caches: UseCaches, *rules: str) -> None:
    """The store is used by a user with these rights alone."""
    for node in cluster.nodes:
        node.run("ACL", "SETUSER", "worker", "reset", "on", ">secret", *rules)
        node.run("FLUSHALL")
    location = [f"redis://worker:secret@127.0.0.1:{node.port}" for node in cluster.nodes]
    use_caches({}, {"default": cluster.settings(LOCATION=location)})


@pytest.mark.nightly
def test_rights_that_are_named_are_enough(guarded: Cluster, use_caches: UseCaches) -> None:
    rights = "~lock:* +@read +@write +@scripting +@connection +info +time +cluster|slots"
    as_worker(guarded, use_caches, *rights.split())
    lease = taken("video:1")
    assert lease.extend(ttl=LONG)
    assert lease.release()
    taken("video:1")
    assert [info.name for info in locks.list()] == ["video:1"]
    assert locks.clear("video:1")
    out = StringIO()
    call_command("locks", "doctor", stdout=out)
    assert "no replica" in out.getvalue()


@pytest.mark.nightly
@pytest.mark.parametrize("missing", [["-cluster"], ["-@scripting"], ["resetkeys", "~other:*"]])
def test_a_right_that_is_missing_is_an_error_with_the_mend_in_it(
    guarded: Cluster, use_caches: UseCaches, missing: list[str]
) -> None:
    as_worker(guarded, use_caches, "~*", "+@all", *missing)
    with pytest.raises(StoreUnavailable, match=r"lacks a right.*it needs"):
        locks.acquire("video:1")
