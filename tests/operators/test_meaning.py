"""What it means to clear a lock is said of each holder, before anybody clears it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from django.core.cache import cache

from django_tasklock import Lease, locks
from django_tasklock._values.owner_record import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.operators.meaning import Holder, Meaning, Notice, meanings
from django_tasklock.stores import stores
from tests.conftest import UseCaches, UseRedis
from tests.steps import Meanwhile, holder, orphan, taken, waiting
from tests.store_cases import redis_cache
from tests.waiting import until


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


def meaning(name: str) -> Meaning:
    (found,) = meanings([holder(name)])
    return found


def store_has(name: str, left: float, **owner: Any) -> None:
    """A lease of the owner of this process, changed as said."""
    stores["default"].acquire(name, new_token(), left, owner_record() | owner)


def waits(name: str, **options: Any) -> Lease:
    """A lease that has to be waited for."""
    lease = locks.try_acquire(name, ttl=60, wait=60, **options)
    assert isinstance(lease, Lease)
    return lease


def test_renewed_lease_notices_after_a_third_of_its_ttl_at_the_latest() -> None:
    lease = taken("video:1", ttl=60, renew=True)
    found = meaning("video:1")
    assert (found.holder, found.notice, found.seconds) == (Holder.ALIVE, Notice.RENEWAL, 20)
    assert not found.safe
    assert lease.held


def test_the_holder_notices_by_then() -> None:
    lease = taken("video:1", ttl=1.5, renew=True)
    seconds = meaning("video:1").seconds
    assert seconds == 0.5
    assert locks.clear("video:1")
    until(lambda: not lease.held, within=seconds + 0.5)


def test_lease_that_is_nearly_over_notices_at_its_deadline() -> None:
    store_has("video:1", 5, ttl=60, renew=True)
    found = meaning("video:1")
    assert found.notice is Notice.RENEWAL
    assert found.seconds is not None
    assert 4 < found.seconds <= 5


def test_lease_that_is_not_renewed_notices_at_its_end_only() -> None:
    lease = taken("video:1", ttl=600)
    found = meaning("video:1")
    assert (found.holder, found.notice, found.safe) == (Holder.ALIVE, Notice.END, False)
    assert found.seconds is not None
    assert 590 < found.seconds <= 600
    assert lease.held


def test_lease_that_was_made_longer_is_not_said_to_notice_sooner() -> None:
    lease = taken("video:1", ttl=30, renew=True)
    assert lease.extend(ttl=600)
    found = meaning("video:1")
    assert found.notice is Notice.PERHAPS
    assert found.seconds is not None
    assert 590 < found.seconds <= 600


@pytest.mark.django_db(transaction=True)
def test_holder_that_is_gone_is_safe_unless_it_may_have_left_subprocesses(
    use_caches: UseCaches, redis_server: Any
) -> None:
    orphan("video:1")
    found = meaning("video:1")
    assert (found.holder, found.notice, found.safe) == (Holder.GONE, Notice.NOBODY, True)
    info = holder("video:1")

    use_caches(
        {"default": redis_cache(redis_server.url)}, {"default": {"OPTIONS": {"TAKEOVER": False}}}
    )
    (found,) = meanings([info])
    assert (found.holder, found.safe) == (Holder.GONE_WITH_CHILDREN, False)


def test_holder_on_another_machine_is_not_known() -> None:
    store_has("video:1", 60, boot="another boot", ttl=60, renew=True)
    found = meaning("video:1")
    assert (found.holder, found.safe) == (Holder.NOT_KNOWN, False)
    assert (found.notice, found.seconds) == (Notice.RENEWAL, 20)


def test_lock_that_cools_is_safe() -> None:
    taken("video:1", hold_at_least=60).release()
    found = meaning("video:1")
    assert (found.holder, found.notice, found.safe) == (Holder.COOLING, Notice.NOBODY, True)


def test_detached_operators_and_foreign_locks_are_not_safe() -> None:
    assert taken("detached").detach()
    assert locks.hold("held", 60, by="alice") is not None
    cache.add("lock:foreign", 1, None)
    found = [meaning(name) for name in ("detached", "held", "foreign")]
    assert [each.holder for each in found] == [
        Holder.DETACHED, Holder.OPERATOR, Holder.OTHER_CODE,
    ]  # fmt: skip
    assert not any(each.safe for each in found)
    assert [each.notice for each in found] == [Notice.NOBODY, Notice.NOBODY, Notice.NEVER]


def test_it_says_who_is_next_and_how_many_wait() -> None:
    lease = taken("video:1")
    assert (meaning("video:1").waiting, meaning("video:1").next) == (0, None)
    waiters = []
    for number in (1, 2):
        task = partial(waits, "video:1", task="videos.cut", task_id=f"id-{number}")
        waiters.append(Meanwhile(task))
        until(lambda number=number: waiting("video:1") == number)  # type: ignore[misc]
    found = meaning("video:1")
    assert found.waiting == 2
    assert found.next is not None
    assert found.next.task_id == "id-1"
    lease.release()
    waiters[0].result().release()
    waiters[1].result().release()


def test_who_waits_for_a_permit_is_next_for_each_of_them() -> None:
    permits = [taken("gpu", slots=2) for _ in range(2)]
    task = partial(waits, "gpu", slots=2, task="videos.cut", task_id="id-1")
    waiter = Meanwhile(task)
    until(lambda: len(locks.waiters("gpu")) == 1)
    for name in ("gpu#1", "gpu#2"):
        found = meaning(name)
        assert found.waiting == 1
        assert found.next is not None
        assert found.next.task_id == "id-1"
    permits[0].release()
    waiter.result().release()


def test_on_a_store_that_polls_nobody_knows_who_waits(use_caches: UseCaches) -> None:
    use_caches(
        {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}, {"default": {}}
    )
    lease = taken("video:1")
    assert (meaning("video:1").waiting, meaning("video:1").next) == (None, None)
    assert lease.release()
