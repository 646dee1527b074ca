"""Leases that count only when replicas have them (the option REPLICAS), and failovers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks

from django_tasklock import InvalidLockConfig, Lease, LeaseLost, StoreUnavailable, lock, locks
from django_tasklock.conf import StoreSettings
from django_tasklock.signals import lock_lost
from django_tasklock.stores import stores
from django_tasklock.stores.redis.replicas import Replicas, ReplicaWait
from tests import needs
from tests.conftest import UseCaches, UseRedis
from tests.nightly.sentinels import ReplicatedRedis, sentinels
from tests.servers import NoRedis, RedisServer
from tests.steps import LONG, Meanwhile, Traffic, holder, sent, taken, waiting
from tests.store_cases import own_prefix
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


class TestAcquire:
    def test_a_lease_is_on_a_replica_when_it_is_granted(
        self, group: ReplicatedRedis, primary: RedisServer
    ) -> None:
        for number in range(20):
            lease = taken(f"video:{number}")
            key = holder(f"video:{number}").key
            assert any(member.redis.exists(key) for member in group.replicas)
            assert lease.release()

    def test_it_takes_one_round_trip(self, primary: RedisServer) -> None:
        taken("video:0")
        traffic = Traffic(primary)
        taken("video:1")
        commands = traffic.commands()
        assert traffic.scripts() == 1
        assert commands["wait"] == 1

    def test_it_is_refused_where_no_replica_answers(
        self, primary: RedisServer, nobody_answers: Callable[[], None]
    ) -> None:
        nobody_answers()
        with pytest.raises(StoreUnavailable, match=r"0 of 1 replicas.* within 1 s"):
            locks.acquire("video:1", ttl=LONG)
        assert not locks.is_locked("video:1")
        assert locks.count() == 0

    def test_of_a_short_lease_no_more_than_half_is_waited_for(
        self, primary: RedisServer, nobody_answers: Callable[[], None]
    ) -> None:
        nobody_answers()
        with pytest.raises(StoreUnavailable, match=r"within 0\.2 s"):
            locks.acquire("video:1", ttl=0.4)

    def test_too_few_are_counted(self, group: ReplicatedRedis, use_redis: UseRedis) -> None:
        use_redis(group.primary.server.url, tasklock={"OPTIONS": {"REPLICAS": 3}})
        with pytest.raises(StoreUnavailable, match="2 of 3 replicas"):
            locks.acquire("video:1")
        assert not locks.is_locked("video:1")

    def test_a_lock_that_is_held_is_refused_and_not_an_outage(
        self, primary: RedisServer, nobody_answers: Callable[[], None]
    ) -> None:
        taken("video:1")
        nobody_answers()
        assert locks.acquire("video:1") is None

    def test_the_script_may_be_new_to_the_server(self, primary: RedisServer) -> None:
        taken("video:1")
        store: Any = stores["default"]
        store.client.command("SCRIPT", "FLUSH")
        taken("video:2")
        # The connection is in step with the server still.
        taken("video:3")
        assert locks.count() == 3

    def test_block_is_not_entered(
        self, primary: RedisServer, nobody_answers: Callable[[], None]
    ) -> None:
        nobody_answers()
        with pytest.raises(StoreUnavailable), lock("video:1"):
            raise AssertionError("the block began")


class TestExtend:
    def test_an_extension_that_no_replica_has_leaves_the_lease_its_old_end(
        self, primary: RedisServer, nobody_answers: Callable[[], None]
    ) -> None:
        lease = taken("video:1", ttl=LONG)
        nobody_answers()
        with pytest.raises(StoreUnavailable, match="video:1 is not extended: 0 of 1 replicas"):
            lease.extend(ttl=10 * LONG)
        assert lease.held
        assert lease.remaining <= LONG

    def test_renewal_goes_on_without_replicas(
        self, primary: RedisServer, nobody_answers: Callable[[], None]
    ) -> None:
        lease = taken("video:1", ttl=3, renew=True)
        nobody_answers()
        ends = lease._own.until
        until(lambda: lease._own.until > ends + 1)
        assert lease.held
        assert lease.release()


class TestWaiting:
    def test_who_is_handed_the_lock_asks_the_replicas_itself(
        self, group: ReplicatedRedis, primary: RedisServer
    ) -> None:
        lease = taken("video:1")
        waiter = Meanwhile(lambda: locks.acquire("video:1", ttl=LONG, wait=None))
        until(lambda: waiting("video:1") == 1)
        traffic = Traffic(primary)
        assert lease.release()
        won = waiter.result()
        assert won is not None
        assert traffic.commands()["wait"] == 1
        assert won.held
        assert won.fence == holder("video:1").fence
        assert any(member.redis.exists(holder("video:1").key) for member in group.replicas)
        assert won.extend()
        assert won.release()

    def test_who_is_handed_a_lock_that_no_replica_has_gives_it_up(
        self, primary: RedisServer, nobody_answers: Callable[[], None]
    ) -> None:
        lease = taken("video:1")
        waiters = []
        for place in (1, 2):
            waiters.append(Meanwhile(lambda: locks.acquire("video:1", ttl=LONG, wait=None)))
            until(lambda place=place: waiting("video:1") == place)  # type: ignore[misc]
        nobody_answers()
        assert lease.release()
        for waiter in waiters:
            with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
                waiter.result()
        assert not locks.is_locked("video:1")

    def test_a_lock_that_was_cleared_meanwhile_is_waited_for_again(
        self, primary: RedisServer
    ) -> None:
        """Between the hand-over and the waiter's own question another takes it."""
        store: Any = stores["default"]
        lease = taken("video:1")
        waiter = Meanwhile(lambda: locks.acquire("video:1", ttl=LONG, wait=None))
        until(lambda: waiting("video:1") == 1)
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
        won = waiter.result()
        assert won is not None
        assert holder("video:1").token == won.token


class TestSettings:
    @pytest.mark.parametrize("wrong", [0, -1, True, "1", 1.0, None])
    def test_a_wrong_number_is_refused(self, use_redis: UseRedis, wrong: Any) -> None:
        use_redis(tasklock={"OPTIONS": {"REPLICAS": wrong}})
        with pytest.raises(InvalidLockConfig, match=r"REPLICAS.*1 or more, not"):
            locks.acquire("video:1")

    def test_a_socket_timeout_bounds_the_wait(self) -> None:
        asked = StoreSettings("default", options={"REPLICAS": 1})
        for timeout, ttl, seconds in ((5.0, 60, 1.0), (None, 60, 1.0), (0.5, 60, 0.25)):
            wait = Replicas(asked, timeout).wait(ttl)
            assert wait is not None
            assert wait.seconds == seconds
        assert ReplicaWait(1, 0.0001).words == (b"WAIT", b"1", b"1")

    def test_the_caches_own_timeout_counts(
        self, group: ReplicatedRedis, use_redis: UseRedis
    ) -> None:
        # django-redis has one pool for each URL, with the options of who asked for it first.
        url = f"{group.primary.server.url}?client_name=impatient"
        use_redis(url, tasklock={"OPTIONS": {"REPLICAS": 3}}, SOCKET_TIMEOUT=0.5)
        with pytest.raises(StoreUnavailable, match=r"within 0\.25 s"):
            locks.acquire("video:1")

    def test_check_deploy_counts_the_replicas(
        self, group: ReplicatedRedis, use_redis: UseRedis
    ) -> None:
        def ids() -> list[str | None]:
            found = run_checks(tags=["tasklock"], include_deployment_checks=True)
            # Not what is wrong with the tasks of other tests.
            return [each.id for each in found if "replica" in str(each.id)]

        url = group.primary.server.url
        use_redis(url, tasklock={"OPTIONS": {"REPLICAS": 3}})
        assert ids() == ["django_tasklock.replicas"]
        use_redis(url, tasklock={"OPTIONS": {"REPLICAS": 2}})
        assert ids() == []
        use_redis(url)
        assert ids() == ["django_tasklock.replication"]

    def test_a_user_who_may_not_wait_is_told_so(
        self, group: ReplicatedRedis, use_redis: UseRedis
    ) -> None:
        server = group.primary
        server.redis.acl_setuser(
            "web", enabled=True, passwords=["+secret"], keys=["*"], channels=["*"],
            categories=["+@all"], commands=["-wait"],
        )  # fmt: skip
        use_redis(
            f"redis://web:secret@127.0.0.1:{server.port}/0",
            tasklock=ONE_REPLICA,
        )
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
        name: str,
        addresses: list[tuple[str, int]],
        tasklock: dict[str, Any],
        **options: Any,
    ) -> None:
        cache = {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"redis://{name}/0",
            "KEY_PREFIX": own_prefix(),
            "OPTIONS": {
                "CLIENT_CLASS": "django_redis.client.SentinelClient",
                "SENTINELS": addresses,
                "SOCKET_TIMEOUT": 2.0,
                **options,
            },
        }
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
        if shutil.which("openssl") is None:
            needs.missing("openssl")
        tls, password, own_password = Tls.made_in(tmp_path), "of-servers", "of-sentinels"
        try:
            with (
                ReplicatedRedis.own(2, tls=tls, password=password) as group,
                sentinels(
                    group, tmp_path, tls=tls, password=password, own_password=own_password
                ) as (name, addresses),
            ):
                use_sentinels(
                    name,
                    addresses,
                    ONE_REPLICA,
                    PASSWORD=password,
                    SENTINEL_KWARGS={"password": own_password, "ssl": True, **tls.client()},
                    CONNECTION_POOL_KWARGS={"ssl": True, **tls.client()},
                )
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
