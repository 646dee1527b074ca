"""Who holds a lock, and what a clear of it means, in the words of the command and the page."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from django.core.cache import cache

from django_tasklock import lock, locks
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.operators.held import held_permits
from django_tasklock.operators.holders import Holder, holder_of, meaning, sentence
from tests.conftest import UseRedis
from tests.steps import LONG, Meanwhile, holder, orphan, taken, waiting
from tests.waiting import until


def on_another_host() -> None:
    record = owner_record("videos.process", "id-1") | {"host": "worker-9", "boot": "another"}
    locks.store.acquire(["video:1"], new_token(), LONG, record)


def by_anna() -> None:
    locks.hold("video:1", LONG, "anna", "a migration")


def by_other_code() -> None:
    cache.add("lock:video:1", "locked", None)


def cooling() -> None:
    with lock("video:1", hold_at_least=LONG):
        pass


KINDS: list[tuple[Callable[[], Any], Holder, bool, str]] = [
    (lambda: taken("video:1"), Holder.ALIVE, False, ", ends in "),
    (lambda: orphan("video:1"), Holder.GONE, True, ", its process is gone, ends in "),
    (on_another_host, Holder.UNKNOWN, False, "Held by worker-9:"),
    (cooling, Holder.COOLING, True, f":{os.getpid()}, ends in "),  # Not since when: it is over.
    (lambda: taken("video:1").detach(LONG), Holder.DETACHED, False, "(no run has adopted "),
    (by_anna, Holder.OPERATOR, True, "Held by operator anna, reason: a migration, for 0."),
    (by_other_code, Holder.FOREIGN, False, "Held by other code, and never expires."),
]


@pytest.mark.parametrize(("take", "kind", "safe", "words"), KINDS, ids=[k[1].value for k in KINDS])
def test_each_holder_has_its_words(
    use_redis: UseRedis, take: Callable[[], Any], kind: Holder, safe: bool, words: str
) -> None:
    use_redis()
    kept = take()
    info = holder("video:1")
    assert holder_of(info) is kind
    assert words in sentence(info)
    is_safe, text = meaning(info)
    assert is_safe is safe
    assert ("may overlap" in text) is not safe
    del kept


def test_who_waits_is_said_with_it(use_redis: UseRedis) -> None:
    use_redis()
    lease = taken("video:1", ttl=LONG)
    waiter = Meanwhile(lambda: locks.acquire("video:1", ttl=LONG, wait=LONG))
    until(lambda: waiting("video:1") == 1)
    info = holder("video:1")
    assert "; 1 waits, for 0." in sentence(info)
    lease.release()
    assert waiter.result() is not None


def test_without_takeover_the_subprocesses_of_a_dead_process_may_still_work(
    use_redis: UseRedis,
) -> None:
    use_redis(tasklock={"OPTIONS": {"TAKEOVER": False}})
    orphan("video:1")
    safe, text = meaning(holder("video:1"))
    assert not safe
    assert "its subprocesses may still work (TAKEOVER is off)" in text


def test_permits_are_found_on_a_store_that_cannot_list(on_locmem: None) -> None:
    permits = [locks.acquire("api", ttl=LONG, slots=3) for _ in range(2)]
    assert [info.slot for info in held_permits(locks, "api")] == [1, 2]
    del permits
