"""Leases that count only when replicas have them (the option REPLICAS), and failovers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks

from django_tasklock import InvalidLockConfig, Lease, LeaseLost, StoreUnavailable, lock, locks
from django_tasklock.signals import lock_lost
from django_tasklock.stores import stores
from tests import needs
from tests.conftest import UseCaches, UseRedis
from tests.nightly.sentinels import ReplicatedRedis, sentinels
from tests.servers import NoRedis, RedisServer
from tests.steps import LONG, Meanwhile, Traffic, holder, sent, taken, waiting
from tests.store_cases import redis_cache
from tests.tls import Tls
from tests.waiting import until

ONE_REPLICA = {"OPTIONS": {"REPLICAS": 1}}
TTL = 30.0
"""seconds: longer than a failover takes"""


@pytest.fixture
def group() -> Iterator[ReplicatedRedis]:
    """A primary with two replicas."""
    try:
        with ReplicatedRedis.own(2) as group:
            yield group
    except NoRedis as error:
        needs.missing(str(error))


@pytest.fixture
def primary(group: ReplicatedRedis, use_redis: UseRedis) -> RedisServer:
    """The store "default" on it asks for one replica."""
    server = group.primary.server
    use_redis(server.url, tasklock=ONE_REPLICA)
    return server


@pytest.fixture
def nobody_answers(group: ReplicatedRedis, primary: RedisServer) -> Iterator[Callable[[], None]]:
    """``nobody_answers()``: the replicas are paused."""
    replicas = [member.server for member in group.replicas]

    def pause() -> None:
        for replica in replicas:
            replica.pause()

    yield pause
    for replica in replicas:
        replica.resume()


def on_a_replica(group: ReplicatedRedis, name: str) -> bool:
    key = holder(name).key
    return any(member.redis.exists(key) for member in group.replicas)


def test_a_lease_that_is_granted_survives_its_server_and_one_that_would_not_is_refused(
    group: ReplicatedRedis, primary: RedisServer, nobody_answers: Callable[[], None]
) -> None:
    # Given a store that asks for one of two replicas
    # I expect each lease to be on a replica when it is granted
    leases = []
    for number in range(20):
        leases.append(taken(f"video:{number}"))
        assert on_a_replica(group, f"video:{number}")

    # And it to take one round trip
    traffic = Traffic(primary)
    leases.append(taken("video:20"))
    commands = traffic.commands()
    assert (traffic.scripts(), commands["wait"]) == (1, 1)

    # When no replica answers, I expect an outage, no block that begins, and no lock that stays
    nobody_answers()
    with pytest.raises(StoreUnavailable, match=r"0 of 1 replicas.* within 1 s"), lock("video:x"):
        raise AssertionError("the block began")
    assert not locks.is_locked("video:x")
    assert locks.count() == len(leases)

    # And a lock that is held to be no outage, and its lease to keep its old end if it is extended
    assert locks.acquire("video:1") is None
    with pytest.raises(StoreUnavailable, match="video:1 is not extended: 0 of 1 replicas"):
        leases[1].extend(ttl=10 * LONG)
    assert leases[1].held
    assert leases[1].remaining <= LONG


@pytest.mark.parametrize(("ttl", "says"), [(0.4, r"within 0\.2 s"), (0.001, "of 1 replicas")])
def test_of_a_short_lease_no_more_than_half_is_waited_for(
    primary: RedisServer, nobody_answers: Callable[[], None], ttl: float, says: str
) -> None:
    """And never for ever, which is what WAIT takes 0 for."""
    nobody_answers()
    with pytest.raises(StoreUnavailable, match=says):
        locks.acquire("video:1", ttl=ttl)


def test_too_few_replicas_are_counted_within_half_of_the_caches_own_timeout(
    group: ReplicatedRedis, use_redis: UseRedis
) -> None:
    # django-redis has one pool for each URL, with the options of who asked for it first.
    url = f"{group.primary.server.url}?client_name="
    for timeout, seconds in ((0.5, r"0\.25"), (5.0, "1"), (None, "1")):
        use_redis(f"{url}{timeout}", tasklock={"OPTIONS": {"REPLICAS": 3}}, SOCKET_TIMEOUT=timeout)
        with pytest.raises(StoreUnavailable, match=rf"2 of 3 replicas.* within {seconds} s"):
            locks.acquire("video:1")
        assert not locks.is_locked("video:1")


def test_the_script_may_be_new_to_the_server(primary: RedisServer) -> None:
    taken("video:1")
    store: Any = stores["default"]
    store.client.command("SCRIPT", "FLUSH")
    taken("video:2")
    # The connection is in step with the server still.
    taken("video:3")
    assert locks.count() == 3


def test_renewal_goes_on_without_replicas(
    primary: RedisServer, nobody_answers: Callable[[], None]
) -> None:
    lease = taken("video:1", ttl=3, renew=True)
    nobody_answers()
    ends = lease._own.until
    until(lambda: lease._own.until > ends + 1)
    assert lease.held
    assert lease.release()


def waiter(behind: int = 0) -> Meanwhile[Lease | None]:
    """One that waits for the lock, behind so many others."""
    run = Meanwhile(lambda: locks.acquire("video:1", ttl=LONG, wait=None))
    until(lambda: waiting("video:1") == behind + 1)
    return run


def test_who_is_handed_the_lock_asks_the_replicas_itself(
    group: ReplicatedRedis, primary: RedisServer
) -> None:
    lease, next_one = taken("video:1"), waiter()
    traffic = Traffic(primary)
    assert lease.release()
    won = next_one.result()
    assert won is not None
    assert traffic.commands()["wait"] == 1
    assert won.held
    assert won.fence == holder("video:1").fence
    assert on_a_replica(group, "video:1")
    assert won.extend()
    assert won.release()


def test_who_is_handed_a_lock_that_no_replica_has_gives_it_up(
    primary: RedisServer, nobody_answers: Callable[[], None]
) -> None:
    lease, waiters = taken("video:1"), [waiter(), waiter(behind=1)]
    nobody_answers()
    assert lease.release()
    for each in waiters:
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
            each.result()
    assert not locks.is_locked("video:1")


def test_a_lock_that_was_cleared_meanwhile_is_waited_for_again(primary: RedisServer) -> None:
    """Between the hand-over and the waiter's own question another takes it."""
    store: Any = stores["default"]
    lease, next_one = taken("video:1"), waiter()
    ask, others = store.acquire_or_join, list[Lease]()

    def ask_late(*arguments: Any, **options: Any) -> Any:
        if not others:
            store.acquire_or_join = ask
            assert locks.clear("video:1")
            others.append(taken("video:1"))
        return ask(*arguments, **options)

    store.acquire_or_join = ask_late
    assert lease.release()
    until(lambda: waiting("video:1") == 1)
    assert others[0].release()
    won = next_one.result()
    assert won is not None
    assert holder("video:1").token == won.token


@pytest.mark.parametrize("wrong", [-1, True, "1", 1.0, None])
def test_a_wrong_number_is_refused(use_redis: UseRedis, wrong: Any) -> None:
    use_redis(tasklock={"OPTIONS": {"REPLICAS": wrong}})
    with pytest.raises(InvalidLockConfig, match=r"REPLICAS must be a number >= 0, not"):
        locks.acquire("video:1")


def test_check_deploy_counts_the_replicas(group: ReplicatedRedis, use_redis: UseRedis) -> None:
    three, two = {"OPTIONS": {"REPLICAS": 3}}, {"OPTIONS": {"REPLICAS": 2}}
    for tasklock, ids in ((three, ["replicas"]), (two, []), ({}, ["replication"])):
        use_redis(group.primary.server.url, tasklock=tasklock)
        found = run_checks(tags=["tasklock"], include_deployment_checks=True)
        # Not what is wrong with the tasks of other tests.
        said = [str(each.id).partition(".")[2] for each in found if "replica" in str(each.id)]
        assert said == ids


def test_a_user_who_may_not_wait_is_told_so(group: ReplicatedRedis, use_redis: UseRedis) -> None:
    server = group.primary
    server.redis.acl_setuser(
        "web", enabled=True, passwords=["+secret"], keys=["*"], channels=["*"],
        categories=["+@all"], commands=["-wait"],
    )  # fmt: skip
    use_redis(f"redis://web:secret@127.0.0.1:{server.port}/0", tasklock=ONE_REPLICA)
    with pytest.raises(StoreUnavailable, match="'wait'"):
        locks.acquire("video:1")
    # Granted, and then abandoned.
    until(lambda: not locks.is_locked("video:1"))


# --------------------------------------------------------------------------------- failovers

SentinelCache = Callable[..., None]


@pytest.fixture
def use_sentinels(use_caches: UseCaches) -> SentinelCache:
    """``use_sentinels(name, addresses, tasklock, **options)``: django-redis's SentinelClient."""

    def use(
        name: str, addresses: list[tuple[str, int]], tasklock: dict[str, Any], **options: Any
    ) -> None:
        client = {"CLIENT_CLASS": "django_redis.client.SentinelClient", "SENTINELS": addresses}
        cache = redis_cache(f"redis://{name}/0", **client, SOCKET_TIMEOUT=2.0, **options)
        factory = "django_redis.pool.SentinelConnectionFactory"
        use_caches(
            {"default": cache}, {"default": tasklock}, DJANGO_REDIS_CONNECTION_FACTORY=factory
        )

    return use


def fail_over(group: ReplicatedRedis) -> None:
    """Kill the primary, and wait until the Sentinels have made another one and locks work."""
    killed = group.primary
    killed.server.kill()
    group.members.remove(killed)
    assert group.primary is not killed

    def works() -> bool:
        try:
            return locks.is_locked("nothing") is False
        except StoreUnavailable:
            return False

    until(works)


def hand_over(lease: Lease) -> Lease:
    """The lease of the waiter that the release of ``lease`` hands the lock to."""
    waiter = Meanwhile(lambda: locks.acquire(lease.name, ttl=TTL, wait=None))
    until(lambda: waiting(lease.name) == 1)
    assert lease.release()
    won = waiter.result()
    assert won is not None
    assert won.held
    return won


@pytest.mark.slow
class TestFailover:
    def test_without_replicas_the_lock_is_lost_and_its_holder_notices(
        self, group: ReplicatedRedis, tmp_path: Path, use_sentinels: SentinelCache
    ) -> None:
        with sentinels(group, tmp_path) as (name, addresses):
            use_sentinels(name, addresses, {})
            for replica in group.replicas:
                group.cut_off(replica)
            with sent(lock_lost) as lost:
                lease = taken("video:1", ttl=TTL, renew=True)
                fail_over(group)
                # Nobody knows of it any more.
                second = taken("video:1", ttl=TTL)
                until(lambda: lost)
            assert not lease.held
            assert [signal["lease"] for signal in lost] == [lease]
            with pytest.raises(LeaseLost, match="the store no longer has it"):
                lease.assert_held()
            assert (second.fence or 0) > (lease.fence or 0)

    def test_with_replicas_the_lease_is_still_there(
        self, group: ReplicatedRedis, tmp_path: Path, use_sentinels: SentinelCache
    ) -> None:
        with sentinels(group, tmp_path) as (name, addresses):
            use_sentinels(name, addresses, ONE_REPLICA)
            first, second = group.replicas
            group.cut_off(first)
            group.cut_off(second)
            with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
                locks.acquire("video:1", ttl=TTL)
            assert not locks.is_locked("video:1")
            # The Sentinels promote the one that has more.
            group.let_in(second)
            lease = taken("video:1", ttl=TTL, renew=True)
            fail_over(group)
            assert group.primary is second
            assert holder("video:1").token == lease.token
            before = lease._own.until
            until(lambda: lease._own.until > before)
            assert lease.held
            assert lease.release()

    def test_sentinels_with_tls_and_passwords(
        self, tmp_path: Path, use_sentinels: SentinelCache
    ) -> None:
        needs.program("openssl")
        tls, password, own_password = Tls.made_in(tmp_path), "of-servers", "of-sentinels"
        secrets: dict[str, Any] = {"tls": tls, "password": password}
        try:
            with (
                ReplicatedRedis.own(2, **secrets) as group,
                sentinels(group, tmp_path, own_password=own_password, **secrets) as found,
            ):
                use_sentinels(
                    *found, ONE_REPLICA, PASSWORD=password,
                    SENTINEL_KWARGS={"password": own_password, "ssl": True, **tls.client()},
                    CONNECTION_POOL_KWARGS={"ssl": True, **tls.client()},
                )  # fmt: skip
                lease = hand_over(taken("video:1", ttl=TTL))
                fail_over(group)
                assert holder("video:1").token == lease.token
                lease = hand_over(lease)
                assert lease.extend()
                assert lease.release()
        except NoRedis as error:
            if "tls-port" in str(error):
                pytest.skip("this redis-server was built without TLS")
            needs.missing(str(error))
