"""Clearing leases as they were seen, also when they go between the look and the clear."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from django.core.cache import cache

from django_tasklock import LockInfo, locks
from django_tasklock.signals import lock_cleared
from tests.conftest import UseRedis
from tests.inside import operators
from tests.steps import LONG, holder, sent, taken

MOST_EVENTS = operators("clearing").MOST_EVENTS
as_seen, digest_of = operators("held").as_seen, operators("held").digest_of
pytestmark = pytest.mark.usefixtures("on_redis")


def cleared(seen: Sequence[LockInfo]) -> dict[str, str]:
    """Clear them; what became of each, in words."""
    outcomes = operators("clearing").clear_all(locks, seen, by="a test")
    return {info.name: outcome.value for info, outcome in outcomes}


def held_now(count: int) -> list[LockInfo]:
    for number in range(count):
        taken(f"video:{number}")
    return locks.list("video:")


def test_each_lease_has_an_outcome_of_its_own() -> None:
    # Given four locks as an operator has seen them, two of which end before the clear
    kept, ended, changed, detached = (taken(name) for name in "abcd")
    seen = [holder(name) for name in "abcd"]
    ended.release()
    changed.release()
    successor = taken("c")
    detached.detach()

    # I expect to be told what became of each
    assert cleared(seen) == {
        "a": "cleared", "b": "not locked", "c": "changed hands", "d": "cleared",
    }  # fmt: skip

    # And nothing to be taken from the one that came after
    assert not kept.extend()
    assert successor.extend()
    assert not locks.is_locked("d")


def test_a_few_clears_are_an_event_each_and_very_many_are_one() -> None:
    with sent(lock_cleared) as heard:
        cleared(held_now(3))
        assert [(event.kind, event.by) for event in locks.history()] == [("cleared", "a test")] * 3
        many = held_now(MOST_EVENTS + 1)
        assert set(cleared(many).values()) == {"cleared"}
    newest, *others = locks.history()
    assert (newest.kind, newest.name, newest.by) == ("cleared", "*", "a test")
    assert newest.reason == f"{len(many)} locks"
    assert len(others) == 3
    assert len(heard) == 3 + len(many)
    assert locks.count() == 0


def test_what_was_cleared_before_an_interruption_is_an_event() -> None:
    clearing = operators("clearing").clear_all(locks, held_now(MOST_EVENTS + 1), by="a test")
    next(clearing)
    clearing.close()
    (event,) = locks.history()
    assert (event.name, event.reason) == ("*", "1 locks")


def test_a_lease_is_told_from_the_next_one_by_what_proves_nothing() -> None:
    lease = taken("video:1")
    digest = digest_of(holder("video:1"))
    assert lease.token not in digest
    assert as_seen(locks, "video:1", digest).token == lease.token
    lease.release()
    assert as_seen(locks, "video:1", digest) is None
    taken("video:1")
    assert as_seen(locks, "video:1", digest) is None


@pytest.mark.parametrize("store", ["redis.RedisStore", "cache.CacheStore"])
def test_a_key_of_other_code_goes_only_with_the_value_that_was_seen(
    use_redis: UseRedis, store: str
) -> None:
    """It has no token: the values are compared."""
    use_redis(tasklock={"BACKEND": f"django_tasklock.stores.{store}"})
    cache.set("lock:video:1", {"by": ["A", 1]}, 600)
    seen = holder("video:1")
    assert digest_of(holder("video:1")) == digest_of(seen)
    cache.set("lock:video:1", {"by": ["B", 1]}, 600)
    assert digest_of(holder("video:1")) != digest_of(seen)
    assert cleared([seen]) == {"video:1": "changed hands"}
    assert cache.get("lock:video:1") == {"by": ["B", 1]}
    assert cleared([holder("video:1")]) == {"video:1": "cleared"}

    # Nor does a lease that was granted since
    lease = taken("video:1", ttl=LONG)
    assert cleared([seen]) == {"video:1": "changed hands"}
    assert lease.extend()


def test_large_values_of_other_code_are_told_from_each_other() -> None:
    cache.set("lock:video:1", "a" * 20_000, 600)
    digest = holder("video:1").digest
    for other in ("b" * 20_000, "a" * 20_001):
        cache.set("lock:video:1", other, 600)
        assert locks.clear("video:1", digest=digest) is False
    cache.set("lock:video:1", "a" * 20_000, 600)
    assert locks.clear("video:1", digest=digest)
    with pytest.raises(TypeError, match="a digest must be a str"):
        locks.clear("video:1", digest=b"x")  # type: ignore[arg-type]
