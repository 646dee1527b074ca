"""The store on a cluster beyond the contract: its keys, what spans several of its buckets, and what
it says of its masters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from django_tasklock import locks
from django_tasklock.stores import stores
from django_tasklock.stores.base import Extension, Grant
from django_tasklock.stores.cluster import BUCKETS, SLOTS, TAGS, RedisClusterStore, bucket_of
from django_tasklock.stores.records import FREE, KEEP, Change, Held, new_record
from tests.clusters import Cluster, ClusterNode
from tests.conftest import UseCaches
from tests.inside import made_of_each_process, new_token, reserved_key
from tests.interruptions import interrupted_at_random
from tests.steps import LONG, RENEWED, answered, holder, renewed, taken, unavailable
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


def test_what_is_of_one_lock_is_in_one_slot_and_all_locks_are_on_all_masters(
    redis_cluster: Cluster,
) -> None:
    # Given the names of many locks, I expect each master to have its part of them
    masters = [redis_cluster.master_of(slot) for slot in SLOTS]
    of_each = [masters[bucket_of(name)] for name in MANY_NAMES]
    assert min(map(of_each.count, redis_cluster.masters)) > len(MANY_NAMES) / 5

    # And the buckets to be spread over all slots
    assert sorted(SLOTS) == SLOTS
    assert [slot * BUCKETS // 16384 for slot in SLOTS] == [*range(BUCKETS)]

    # And a key to be that of the page, as processes of two releases must agree about it
    assert TAGS[bucket_of("video:1")] == "21"
    node = redis_cluster.nodes[0]
    said = [node.run("CLUSTER", "KEYSLOT", f"lock:{{{tag}}}:a{{b}}") for tag in TAGS]
    assert said == SLOTS


def test_permits_and_the_reservation_of_a_job_are_beside_the_lock() -> None:
    for name in MANY_NAMES:
        job, permit = reserved_key("videos.tasks.process", name), f"{name}#12"
        assert bucket_of(name) == bucket_of(f" {job}") == bucket_of(permit)
    assert bucket_of("a#01") != bucket_of("a"), "no permit is called so"
    assert bucket_of("a#1#2") == bucket_of("a#1"), "a permit, and the lock whose permit it is"


def test_a_bucket_is_keys_and_a_client(
    redis_cluster: Cluster, use_caches: UseCaches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a process has of its own, such as connections and listeners, is not there 64 times."""
    declared, made = made_of_each_process(monkeypatch)
    use_caches({}, {"default": redis_cluster.settings() | {"KEY_PREFIX": own_prefix()}})
    store = stores["default"]
    assert isinstance(store, RedisClusterStore)
    token = new_token()
    assert isinstance(store.acquire(["video:1"], token, LONG, {}), Grant)
    # Connections to a node that says who has the slot, and to the master that has it.
    assert 0 < len(made) <= 2
    assert store.count() == 1
    assert store.release("video:1", token)
    assert len(made) <= len(redis_cluster.masters) + 1
    assert len(declared) < BUCKETS / 2
    first = store.buckets[0]
    assert all(each.encoding is first.encoding for each in store.buckets)
    assert len({each.keys.index for each in store.buckets}) == BUCKETS


def test_a_list_is_in_the_order_in_which_leases_end(store: RedisClusterStore) -> None:
    """Of reservations too."""
    names = ["a:x", *(f"b:{number}" for number in range(40)), "a:y", "a:z"]
    for number, name in enumerate(names):
        taken(name, ttl=LONG + 10 * number)
        key = reserved_key("task", name)
        assert store.reserve(key, f"id-{number}", LONG + 10 * number) is None
    for limit, offset in ((None, 0), (1, 0), (10, 30), (5, 40), (5, 99)):
        end = None if limit is None else offset + limit
        found = [info.name for info in locks.list(limit=limit, offset=offset)]
        assert found == names[offset:end]
    assert [info.name for info in locks.list("a:")] == ["a:x", "a:y", "a:z"]
    assert (locks.count(), locks.count("b:"), locks.count("c:")) == (43, 40, 0)
    assert [each.text for each in store.reservations()] == [f"id-{n}" for n in range(len(names))]


def test_several_changes_are_made_or_refused(store: RedisClusterStore) -> None:
    assert len({*map(bucket_of, "abc")}) == 3
    held = Held(taken("c").token)
    changes = [Change(name, FREE, new_record(new_token(), {}), LONG) for name in "ab"]
    for last, made in ((Change("c", FREE, KEEP), False), (Change("c", held, None), True)):
        done = store.put([*changes, last])
        assert done.made is made
        assert [entry is None for entry in done.entries] == [not made, not made, made]


def test_what_was_made_is_undone_where_a_later_change_is_refused(store: RedisClusterStore) -> None:
    changes = [Change(name, FREE, new_record(new_token(), {}), LONG) for name in "abc"]
    taken("c")
    done = store.put(changes)
    assert not done.made
    assert [entry is None for entry in done.entries] == [True, True, False]
    assert [locks.is_locked(name) for name in "abc"] == [False, False, True]


@pytest.fixture
def partial_cluster() -> Iterator[Cluster]:
    """One whose masters serve their slots, whether others answer or not."""
    with Cluster.own(3, 0, full_coverage=False, timeout_ms=60_000) as cluster:
        yield cluster


@pytest.mark.slow
def test_leases_at_masters_that_answer_are_renewed_beside_one_that_hangs(
    partial_cluster: Cluster, use_caches: UseCaches
) -> None:
    """The renewal waits for it for less than a lease lasts, however patient other calls are."""
    use_caches({}, {"default": partial_cluster.settings(SOCKET_TIMEOUT=LONG)})
    names = on_each(partial_cluster)
    kept = {node: taken(name, ttl=RENEWED, renew=True) for node, name in names.items()}
    silent, *others = kept
    silent.server.pause()
    until(lambda: not kept[silent].held)
    for node in others:
        renewed(kept[node])
        assert kept[node].release()
    silent.server.resume()


@pytest.mark.nightly
@pytest.mark.slow
def test_one_that_hangs_fails_one_call_and_then_others_are_asked_who_has_what(
    partial_cluster: Cluster, use_caches: UseCaches
) -> None:
    """Whichever it is: also the one that would be asked first."""
    names = on_each(partial_cluster)
    for silent in names:
        use_caches({}, {"default": partial_cluster.settings(SOCKET_TIMEOUT=1.0)})
        assert answered(partial(locks.get, names[silent])) is None
        silent.server.pause()
        unavailable(partial(locks.get, names[silent]))
        for each in names.keys() - {silent}:
            assert taken(names[each]).release()
        silent.server.resume()


@pytest.mark.nightly
@pytest.mark.slow
def test_the_leases_of_others_are_extended_and_nothing_is_said_of_a_silent_masters(
    partial_cluster: Cluster, use_caches: UseCaches
) -> None:
    use_caches({}, {"default": partial_cluster.settings(SOCKET_TIMEOUT=1.0)})
    store, names = stores["default"], on_each(partial_cluster)
    silent, other, _ = names
    leases = {name: taken(name) for name in MANY_NAMES}
    batch = [Extension(name, lease.token, LONG) for name, lease in leases.items()]
    silent.server.pause()
    began = time.monotonic()
    done = dict(zip(leases, store.extend_many(batch), strict=True))
    assert time.monotonic() - began < 10, "it is asked once, and not for each of its buckets"
    has = {slot: partial_cluster.master_of(slot, other) for slot in SLOTS}
    mine = [name for name in leases if has[SLOTS[bucket_of(name)]] is silent]
    assert done == {name: None if name in mine else True for name in leases}
    unavailable(locks.list, locks.count, lambda: locks.acquire(names[silent]))
    silent.server.resume()
    assert answered(leases[mine[0]].extend)


# redis-py leaves a socket to the garbage collector if it is interrupted while it connects.
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:unclosed", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_call_leaves_no_reply_to_the_next_one(store: RedisClusterStore) -> None:
    names = iter(MANY_NAMES)

    def answers() -> None:
        lease = taken(name := next(names))
        assert holder(name).token == lease.token
        assert lease.release()

    ask: Callable[[int], Any] = lambda _: store.find_many(MANY_NAMES[:50])  # noqa: E731
    interrupted_at_random(ask, times=100, within=0.001, after=answers)


@pytest.mark.nightly
def test_the_check_says_what_all_masters_have_in_common(store: RedisClusterStore) -> None:
    (finding,) = store.check()
    assert (finding.id, finding.serious) == ("replication", False)
    assert finding.message.startswith("every master: ")
    assert 0 < (store.uptime() or 0) < 24 * 3600
