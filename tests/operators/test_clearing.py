"""Clearing the lease that was seen, also when it goes between the question and the clear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.cache import cache

from django_tasklock import Lease, LockInfo, LockService, locks
from django_tasklock.operators.clearing import Outcome, clear_seen
from django_tasklock.stores import stores
from django_tasklock.stores.record import digest_of
from tests.conftest import UseRedis
from tests.steps import holder


class Interrupted(LockService):
    """A service between whose first answer and the next question something happens."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] | None = meanwhile

    def get(self, name: str) -> LockInfo | None:
        info = super().get(name)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile:
            meanwhile()
        return info


@pytest.fixture
def lease(use_redis: UseRedis) -> Lease:
    use_redis()
    lease = locks.acquire("video:1", ttl=600)
    assert lease
    return lease


def test_lease_that_changes_hands_in_that_moment_is_left_alone(lease: Lease) -> None:
    successors: list[Lease | None] = []

    def change_hands() -> None:
        lease.release()
        successors.append(locks.acquire("video:1", ttl=600))

    outcome, holder = clear_seen(Interrupted(change_hands), "video:1", lease.token, by="a test")

    assert outcome is Outcome.CHANGED_HANDS
    assert holder is not None
    assert holder.token == lease.token
    (successor,) = successors
    assert successor is not None
    assert successor.extend()


def test_lease_that_ends_in_that_moment_is_said_to_have(lease: Lease) -> None:
    outcome, _ = clear_seen(Interrupted(lease.release), "video:1", lease.token, by="a test")
    assert outcome is Outcome.NOT_LOCKED


class TestForeignKeys:
    """Keys that somebody else set have no token: the value that was seen is compared."""

    @pytest.fixture(autouse=True)
    def on_redis(self, use_redis: UseRedis) -> None:
        use_redis()
        cache.set("lock:video:1", "locked by A", 600)

    def change_hands(self) -> None:
        cache.set("lock:video:1", "locked by B", 600)

    def test_value_that_changes_in_that_moment_is_left_alone(self) -> None:
        digest = holder("video:1").digest
        service = Interrupted(self.change_hands)
        outcome, _ = clear_seen(service, "video:1", None, digest, by="a test")
        assert outcome is Outcome.CHANGED_HANDS
        assert cache.get("lock:video:1") == "locked by B"

    @pytest.mark.parametrize("known", [True, False])
    def test_lease_that_is_granted_in_that_moment_is_left_alone(self, known: bool) -> None:
        leases: list[Lease | None] = []

        def change_hands() -> None:
            cache.delete("lock:video:1")
            leases.append(locks.acquire("video:1", ttl=600))

        digest = holder("video:1").digest if known else None
        outcome, _ = clear_seen(Interrupted(change_hands), "video:1", None, digest, by="a test")
        assert outcome is Outcome.CHANGED_HANDS
        (lease,) = leases
        assert lease is not None
        assert lease.extend()

    def test_key_of_another_type_is_told_from_a_value(self) -> None:
        store: Any = stores["default"]
        digest = holder("video:1").digest
        store.client.redis.delete(store.key("video:1"))
        store.client.redis.rpush(store.key("video:1"), "locked by A")
        assert holder("video:1").digest != digest
        assert locks.clear("video:1", digest=digest) is False
        assert locks.clear("video:1", digest=holder("video:1").digest)

    def test_large_values_are_told_from_each_other(self) -> None:
        cache.set("lock:video:1", "a" * 20_000, 600)
        digest = holder("video:1").digest
        for other in ("b" * 20_000, "a" * 20_001):
            cache.set("lock:video:1", other, 600)
            assert locks.clear("video:1", digest=digest) is False
        cache.set("lock:video:1", "a" * 20_000, 600)
        assert locks.clear("video:1", digest=digest)

    def test_digest_of_a_lease_clears_nothing(self) -> None:
        locks.clear("video:1")
        lease = locks.acquire("video:1", ttl=600)
        assert lease
        store: Any = stores["default"]
        raw = store.client.redis.get(store.key("video:1"))
        assert locks.clear("video:1", digest=digest_of(raw)) is False
        assert lease.extend()

    def test_digest_is_a_str(self) -> None:
        with pytest.raises(TypeError, match="a digest is a str"):
            locks.clear("video:1", digest=b"x")  # type: ignore[arg-type]

    def test_plain_cache_compares_as_well(self, use_redis: UseRedis) -> None:
        use_redis(tasklock={"BACKEND": "django_tasklock.stores.cache.CacheStore"})
        cache.set("lock:video:1", {"by": ["A", 1]}, 600)
        seen = holder("video:1")
        assert holder("video:1").digest == seen.digest
        cache.set("lock:video:1", {"by": ["B", 1]}, 600)
        assert locks.clear("video:1", digest=seen.digest) is False
        assert locks.clear("video:1", digest=holder("video:1").digest)
