"""An operator's hold: a lock without a process, which keeps jobs from starting."""

from __future__ import annotations

from typing import Any

import pytest

from django_tasklock import Lease, LockInfo, LockNotAcquired, lock, locks, signals
from django_tasklock.stores.base import BaseStore
from tests.inside import Owner
from tests.steps import LONG, Meanwhile, holder, in_child, orphan, sent, taken, waiting
from tests.waiting import until


def held(name: str = "video:1", ttl: float = LONG, **options: Any) -> LockInfo:
    info = locks.hold(name, ttl, **options)
    assert info is not None, f"{name} is held by {locks.get(name)}"
    return info


def test_it_keeps_everybody_from_the_lock_until_it_is_cleared(
    each_store: BaseStore, caplog: pytest.LogCaptureFixture
) -> None:
    # Given an operator who holds a lock, which is no run of a job
    with sent(signals.lock_acquired) as acquired:
        info = held(by="alice", reason="a migration")
    assert acquired == []
    words = "lock video:1 in store default is held by operator alice for 1m00s: a migration"
    assert words in caplog.messages
    assert (info.name, info.held_by, info.reason) == ("video:1", "alice", "a migration")
    assert (info.store, info.granted, info.renewing) == ("default", LONG, False)
    assert 0 < (info.ttl or 0) <= LONG + 1
    # I expect everybody to be refused, and to hear who holds it, and why
    seen = holder("video:1")
    assert seen.token == info.token
    assert seen.owner == info.owner == Owner(held_by="alice", reason="a migration")
    assert seen.owner.alive() is None
    assert locks.acquire("video:1") is None
    with pytest.raises(LockNotAcquired, match=r"operator alice \(a migration\)"):
        lock("video:1").__enter__()
    assert locks.hold("video:1", LONG, by="alice") is None
    # And it to end when it is cleared
    assert locks.clear("video:1", info.token)
    taken("video:1")
    assert locks.hold("video:1", LONG) is None, "it takes over from no one who lives"
    assert holder("video:1").held_by is None


@pytest.mark.usefixtures("on_redis")
class TestOnRedis:
    def test_it_outlives_its_process_and_takes_the_lock_of_a_dead_one(self) -> None:
        orphan("video:1")
        before = holder("video:1").fence or 0
        assert in_child(lambda: locks.hold("video:1", LONG, by="alice") is not None)
        assert holder("video:1").held_by == "alice"
        assert (holder("video:1").fence or 0) > before
        waits = Meanwhile(lambda: taken("video:1", wait=LONG))
        until(lambda: waiting("video:1") == 1)
        assert locks.clear("video:1")
        assert waits.result().held

    def test_what_cannot_be_meant_is_an_error_and_255_bytes_are_kept(self) -> None:
        wrong: list[dict[str, Any]] = [
            {"by": "al\nice"}, {"by": "a" * 256}, {"by": None}, {"reason": "\u202e"},
            {"reason": "é" * 128}, {"reason": b"why"}, {"ttl": 0}, {"ttl": None},
            {"name": "a name"},
        ]  # fmt: skip
        for each in wrong:
            with pytest.raises((TypeError, ValueError), match=next(iter(each))):
                locks.hold(**{"name": "video:1", "ttl": LONG, **each})
        assert not locks.is_locked("video:1")
        by, reason = "维" * 85, "é" * 127
        assert held(by=by, reason=reason).held_by == by
        assert (holder("video:1").held_by, holder("video:1").reason) == (by, reason)

    def test_one_that_raised_does_not_keep_the_lock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its caller takes it for not held, and nobody would clear it."""

        def interrupted(_: Lease) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Lease, "outlives", interrupted)
        with pytest.raises(KeyboardInterrupt):
            locks.hold("video:1", LONG, by="alice")
        until(lambda: not locks.is_locked("video:1"))
