"""Leases that outlive their process: one that is detached here and adopted there, and an operator's
hold, which keeps jobs from starting."""

from __future__ import annotations

import base64
import json
import os
import signal
from typing import Any

import pytest

from django_tasklock import (
    InvalidLockConfig,
    Lease,
    LeaseLost,
    LockInfo,
    LockNotAcquired,
    StoreUnavailable,
    lock,
    locks,
    signals,
)
from django_tasklock.signals import lock_lost
from django_tasklock.stores.base import BaseStore
from tests import steps
from tests.inside import COOLING, Owner, read_handle
from tests.interruptions import at_every_instruction
from tests.steps import (
    LONG,
    RENEWED,
    Meanwhile,
    holder,
    in_child,
    orphan,
    renewed,
    sent,
    silent,
    taken,
    waiter,
)
from tests.waiting import until

NAME = "video:1"


def adopted(handle: str, **options: Any) -> Lease:
    lease = locks.adopt(handle, **options)
    assert lease is not None, f"{NAME} is held by {locks.get(NAME)}"
    return lease


def test_another_holder_goes_on_under_the_same_lease(each_store: BaseStore) -> None:
    # Given a lease that its holder has detached
    lease = taken(NAME)
    began = holder(NAME).acquired_at
    handle = lease.detach()
    # I expect it to be his no more, and the lock to stay taken
    said = (lease.held, lease.remaining, lease.release(), lease.extend(LONG))
    assert said == (False, 0.0, False, False)
    with pytest.raises(LeaseLost, match="it was detached"):
        lease.assert_held()
    assert (holder(NAME).detached, holder(NAME).token) == (True, lease.token)
    assert locks.acquire(NAME) is None
    # And whoever has the handle to go on with that very lease, and to hand it on in turn
    other = adopted(handle)
    same = (other.name, other.token, other.fence, other.ttl)
    assert same == (NAME, lease.token, lease.fence, LONG)
    seen = holder(NAME)
    assert (other.held, seen.detached, seen.acquired_at) == (True, False, began)
    third = adopted(other.detach(ttl=2 * LONG))
    assert (third.token, third.ttl) == (lease.token, LONG)
    assert locks.adopt(handle) is None
    assert third.extend(LONG)
    assert third.release()
    assert locks.adopt(handle) is None


def test_a_block_whose_lease_was_detached_ends_and_releases_nothing(store: BaseStore) -> None:
    """And a handle lasts as long as it says."""
    with lock(NAME, ttl=LONG) as lease:
        handles = [lease.detach()]
    with lock("b", ttl=LONG, reentrant=True), lock("b", reentrant=True) as inner:
        handles.append(inner.detach())
    assert holder(NAME).detached
    assert all(adopted(each).release() for each in handles)
    handle = taken(NAME, ttl=LONG, renew=True).detach(ttl=1.0)
    until(lambda: not locks.is_locked(NAME))
    assert locks.adopt(handle) is None


@pytest.mark.usefixtures("on_redis")
class TestOnRedis:
    def test_every_part_of_a_handle_is_needed(self) -> None:
        for no_text in (None, b"1.abc", 5, ["1.abc"]):
            with pytest.raises(TypeError, match="a handle must be the str of lease"):
                locks.adopt(no_text)  # type: ignore[arg-type]
        handle = taken(NAME).detach()
        wrong = [handle[:end] for end in range(len(handle))]
        wrong += ["2" + handle[1:], "abc", "1.!!", "1.bnVsbA", "x" * 5000, "1." + "[" * 99]
        said = [*read_handle(handle)[:7], "a key", 1.5]
        parts = [(0, ""), (1, "a b"), (2, "t"), (3, -1), (4, COOLING), (5, 0), (5, "5"), (7, 5)]
        for at, part in [*parts, (8, "1.5"), (8, None), (8, 10**400)]:
            text = json.dumps([*said[:at], part, *said[at + 1 :]]).encode()
            wrong.append("1." + base64.urlsafe_b64encode(text).decode().rstrip("="))
        for one in wrong:
            with pytest.raises(ValueError):
                locks.adopt(one)
        with pytest.raises(InvalidLockConfig, match="nowhere"):
            locks.adopt(str(read_handle(handle)._replace(alias="nowhere")))
        assert adopted(handle).release()

    def test_it_outlives_its_process_and_ends_with_the_adopters(self) -> None:
        handle = in_child(lambda: taken(NAME).detach())
        assert locks.acquire(NAME, wait=0.2) is None

        def adopt_and_die() -> None:
            adopted(handle)
            os.kill(os.getpid(), signal.SIGKILL)

        steps.killed_in_child(adopt_and_die)
        assert holder(NAME).owner.alive() is False
        assert taken(NAME).release()

    def test_a_lease_that_is_not_held_cannot_be_detached(self) -> None:
        lease = taken(NAME)
        assert lease.release()
        with pytest.raises(LeaseLost, match="it was released"):
            lease.detach()
        lost = taken(NAME)
        locks.clear(NAME)
        with sent(lock_lost) as losses, pytest.raises(LeaseLost, match="no longer had it"):
            lost.detach()
        assert len(losses) == 1

    def test_nobody_renews_a_detached_lease_and_the_adopter_renews_his(self) -> None:
        lease = taken(NAME, ttl=RENEWED, renew=True)
        handle = lease.detach(ttl=LONG)
        assert not lease.renew
        other = adopted(handle, renew=True)
        assert (holder(NAME).ttl or 0) <= RENEWED
        renewed(other, 2)

    def test_an_adopt_without_an_answer_ends_no_lease(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        handle = taken(NAME).detach()
        lease = adopted(handle)
        with monkeypatch.context() as outage:
            silent(outage, "rewrite")
            with pytest.raises(StoreUnavailable):
                locks.adopt(handle)
        assert locks.adopt(handle) is None
        assert lease.release()

    @pytest.mark.nightly
    @pytest.mark.slow
    @pytest.mark.timeout(1200)  # At most places the lease has to end by its ttl.
    @pytest.mark.parametrize("adopts", [False, True])
    def test_an_interruption_anywhere_leaves_nothing_beyond_the_ttl(self, adopts: bool) -> None:
        def hand_on(name: str) -> None:
            handle = taken(name, ttl=0.5).detach()
            if adopts and (other := locks.adopt(handle, renew=True)) is not None:
                other.release()

        assert at_every_instruction(hand_on, NAME, "hand_on") > 200


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
class TestHold:
    def test_it_outlives_its_process_and_takes_the_lock_of_a_dead_one(self) -> None:
        orphan("video:1")
        before = holder("video:1").fence or 0
        assert in_child(lambda: locks.hold("video:1", LONG, by="alice") is not None)
        assert holder("video:1").held_by == "alice"
        assert (holder("video:1").fence or 0) > before
        waits = waiter("video:1", 1)
        assert locks.clear("video:1")
        assert waits.result().held

    def test_after_a_wait_it_says_how_long_the_store_keeps_it(self) -> None:
        # Given an operator who has waited for a while, and is handed the lock
        lease = taken("video:1")
        hold = Meanwhile(lambda: held(ttl=6.0, wait=None))
        until(lambda: (holder("video:1").longest_wait or 0) > 2, "a third of the hold's time")
        assert lease.release()

        # I expect the hold not to be said shorter by the wait
        assert (hold.result().ttl or 0) > (holder("video:1").ttl or 0) - 1

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
