"""An operator's hold: a lock without a process, which keeps jobs from starting."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest
from django.core.cache import caches
from django.db import connections

from django_tasklock import LockInfo, LockNotAcquired, StoreUnavailable, lock, locks, signals
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore
from tests.inside import Owner
from tests.steps import LONG, Meanwhile, holder, in_child, orphan, sent, taken, waiting
from tests.waiting import until


def held(name: str = "video:1", ttl: float = LONG, **options: Any) -> LockInfo:
    info = locks.hold(name, ttl, **options)
    assert info is not None, f"{name} is held by {locks.get(name)}"
    return info


def test_it_keeps_everybody_from_the_lock_until_it_is_cleared(each_store: BaseStore) -> None:
    # Given a lock that an operator holds
    info = held(by="alice", reason="a migration")

    # I expect it to say who, why, and for how long, and to name no process that could be dead
    assert (info.name, info.held_by, info.reason) == ("video:1", "alice", "a migration")
    assert (info.store, info.granted, info.renewing) == ("default", LONG, False)
    assert 0 < (info.ttl or 0) <= LONG + 1
    seen = holder("video:1")
    assert (seen.token, seen.owner) == (info.token, info.owner)
    assert seen.owner == Owner(held_by="alice", reason="a migration")
    assert seen.owner.alive() is None

    # And to refuse jobs, blocks and other operators, itself too
    assert locks.acquire("video:1") is None
    with pytest.raises(LockNotAcquired, match=r"operator alice \(a migration\)"), lock("video:1"):
        pytest.fail("the block ran")  # pragma: no cover
    assert locks.hold("video:1", LONG, by="bob") is None
    assert locks.hold("video:1", LONG, by="alice") is None
    assert holder("video:1").token == info.token

    # Until it is cleared, as any lock
    assert locks.clear("video:1", info.token)
    lease = taken("video:1")
    assert locks.hold("video:1", LONG) is None, "it takes over from no one who lives"
    assert (holder("video:1").held_by, holder("video:1").reason) == (None, None)
    assert lease.release()


def test_it_can_wait_for_the_present_holder_and_ends_by_itself(store: BaseStore) -> None:
    lease = taken("video:1")

    def hold() -> LockInfo | None:
        try:
            return locks.hold("video:1", 1, by="alice", wait=LONG)
        finally:  # what the store has opened for this thread
            caches.close_all()
            connections.close_all()

    waits = Meanwhile(hold)
    if store.supports_waiting:
        until(lambda: locks.waiters("video:1"))
        assert [owner.held_by for owner in locks.waiters("video:1")] == ["alice"]
    assert locks.clear("video:1", lease.token)
    info = waits.result()
    assert info is not None
    assert info.held_by == "alice"
    until(lambda: locks.acquire("video:1") is not None)


def test_it_outlives_its_process_and_takes_the_lock_of_a_dead_one(on_redis: None) -> None:
    orphan("video:1")
    before = holder("video:1").fence or 0
    assert in_child(lambda: locks.hold("video:1", LONG, by="alice") is not None)
    assert holder("video:1").held_by == "alice"
    assert (holder("video:1").fence or 0) > before
    waits = Meanwhile(lambda: taken("video:1", wait=LONG))
    until(lambda: waiting("video:1") == 1)
    assert locks.clear("video:1")
    assert waits.result().held


def test_the_signal_and_the_log_line_are_sent_once(
    on_redis: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="django_tasklock")
    with sent(signals.lock_held) as holds, sent(signals.lock_acquired) as acquired:
        info = held(ttl=7200, by="alice", reason="a migration")
        with sent(signals.lock_contended) as refusals:
            assert locks.hold("video:1", LONG, by="bob") is None
    assert acquired == []
    (said,) = holds
    assert (said["name"], said["store"], said["ttl"]) == ("video:1", "default", 7200)
    assert said["holder"] == info
    (said,) = refusals
    assert said["holder"].token == info.token
    assert said["owner"].held_by == "bob"
    assert locks.clear("video:1", by="bob")
    record, refused, cleared = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "lock video:1 in store default is held by operator alice for 2h00m: a migration"
    )
    assert getattr(record, "lock_owner", {})["held_by"] == "alice"
    assert "refused to operator bob" in refused.getMessage()
    assert cleared.getMessage() == (
        "lock video:1 in store default, held by operator alice (a migration), was cleared by bob"
    )


def test_texts_of_255_bytes_are_kept_also_by_pickle(on_redis: None) -> None:
    by, reason = "维" * 85, "é" * 127
    info = held(by=by, reason=reason)
    for each in (holder("video:1"), pickle.loads(pickle.dumps(info))):
        assert (each.held_by, each.reason) == (by, reason)


def test_what_cannot_be_meant_is_an_error(on_redis: None) -> None:
    wrong: list[dict[str, Any]] = [
        {"by": "al\nice"}, {"by": "a" * 256}, {"by": None}, {"reason": "\u202e"},
        {"reason": "é" * 128}, {"reason": b"why"}, {"ttl": 0}, {"ttl": None}, {"name": "a name"},
    ]  # fmt: skip
    for each in wrong:
        with pytest.raises((TypeError, ValueError), match=next(iter(each))):
            locks.hold(**{"name": "video:1", "ttl": LONG, **each})
    assert not locks.is_locked("video:1")


def test_hold_that_raised_does_not_keep_the_lock(
    on_redis: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller takes it for not held, and nobody would clear it."""

    def silent(name: str) -> None:
        raise StoreUnavailable("default", "silent")

    with monkeypatch.context() as outage:
        outage.setattr(stores["default"], "get", silent)
        with pytest.raises(StoreUnavailable):
            locks.hold("video:1", LONG, by="alice")
    until(lambda: not locks.is_locked("video:1"))
