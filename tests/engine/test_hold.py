"""An operator's hold: a lock without a process, which keeps jobs from starting."""

from __future__ import annotations

import logging
import os
import pickle
import random
import signal
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from django.core.cache import caches
from django.db import connections

from django_tasklock import LockInfo, LockNotAcquired, StoreUnavailable, lock, locks, signals
from django_tasklock._values.owner import Owner
from django_tasklock.operators.doctor import diagnose
from django_tasklock.stores.base import BaseStore
from tests.conftest import UseCaches, UseRedis
from tests.five_methods import FiveMethodStore
from tests.steps import LONG, Meanwhile, fork, holder, in_child, sent, taken, waiting
from tests.waiting import until


@pytest.fixture
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


def held(name: str = "video:1", ttl: float = LONG, **options: Any) -> LockInfo:
    info = locks.hold(name, ttl, **options)
    assert info is not None, f"{name} is held by {locks.get(name)}"
    return info


class TestOnEveryStore:
    def test_it_keeps_everybody_from_the_lock_until_it_is_cleared(
        self, each_store: BaseStore
    ) -> None:
        # Given a lock that an operator holds
        info = held(by="alice", reason="a migration")

        # I expect it to say who, why, and for how long
        assert (info.name, info.held_by, info.reason) == ("video:1", "alice", "a migration")
        assert (info.store, info.granted, info.renewing) == ("default", LONG, False)
        assert 0 < (info.ttl or 0) <= LONG + 1
        seen = holder("video:1")
        assert (seen.token, seen.owner) == (info.token, info.owner)

        # And to refuse jobs, blocks and other operators, itself too
        assert locks.acquire("video:1") is None
        with (
            pytest.raises(LockNotAcquired, match=r"operator alice \(a migration\)"),
            lock("video:1"),
        ):
            pass
        assert locks.hold("video:1", LONG, by="bob") is None
        assert locks.hold("video:1", LONG, by="alice") is None
        assert holder("video:1").token == info.token

        # Until it is cleared, as any lock
        assert locks.clear("video:1", info.token)
        assert taken("video:1").release()

    def test_it_names_no_process_that_could_be_dead(self, store: BaseStore) -> None:
        held(by="alice")
        owner = holder("video:1").owner
        assert owner == Owner(held_by="alice", reason="")
        assert owner.alive() is None
        assert locks.acquire("video:1") is None

    def test_it_takes_over_from_no_one_who_lives(self, store: BaseStore) -> None:
        lease = taken("video:1")
        assert locks.hold("video:1", LONG) is None
        assert holder("video:1").token == lease.token
        assert holder("video:1").held_by is None
        assert holder("video:1").reason is None

    def test_it_can_wait_for_the_present_holder(self, store: BaseStore) -> None:
        lease = taken("video:1")

        def hold() -> LockInfo | None:
            try:
                return locks.hold("video:1", LONG, by="alice", wait=LONG)
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
        assert holder("video:1").token == info.token

    def test_it_ends_by_itself(self, store: BaseStore) -> None:
        held(ttl=0.2)
        until(lambda: locks.acquire("video:1") is not None)


class TestOnRedis:
    @pytest.fixture(autouse=True)
    def _on_redis(self, on_redis: None) -> None:
        pass

    def test_it_outlives_its_process(self) -> None:
        assert in_child(lambda: locks.hold("video:1", LONG, by="alice") is not None)
        assert holder("video:1").held_by == "alice"
        assert locks.acquire("video:1", wait=0.2) is None

    def test_it_takes_the_lock_of_a_dead_process(self) -> None:
        assert in_child(lambda: locks.acquire("video:1", ttl=LONG) is not None)
        assert holder("video:1").owner.alive() is False
        assert held(by="alice").held_by == "alice"

    def test_the_next_in_the_queue_gets_the_lock_when_it_ends(self) -> None:
        info = held()
        waits = Meanwhile(lambda: locks.acquire("video:1", ttl=LONG, wait=LONG))
        until(lambda: waiting("video:1") == 1)
        assert locks.clear("video:1", info.token)
        lease = waits.result()
        assert lease is not None
        assert lease.held

    def test_it_is_listed_and_the_doctor_finds_nothing_wrong(self) -> None:
        held("video:1", by="alice", reason="a migration")
        held("video:2")
        assert [(info.held_by, info.reason) for info in locks.list()] == [
            ("alice", "a migration"), ("", ""),
        ]  # fmt: skip
        assert [problem for problem in diagnose() if problem.kind == "owner gone"] == []

    def test_it_has_a_fence(self) -> None:
        before = taken("video:0").fence or 0
        assert (held().fence or 0) > before

    def test_the_signal_and_the_log_line_are_sent_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG, logger="django_tasklock")
        with sent(signals.lock_held) as holds, sent(signals.lock_acquired) as acquired:
            info = held(ttl=7200, by="alice", reason="a migration")
        assert acquired == []
        ((said,)) = holds
        assert (said["name"], said["store"], said["ttl"]) == ("video:1", "default", 7200)
        assert said["holder"] == info
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage() == (
            "lock video:1 in store default is held by operator alice for 2h00m: a migration"
        )
        assert getattr(record, "lock_owner", {})["held_by"] == "alice"

    def test_a_refusal_is_contention(self, caplog: pytest.LogCaptureFixture) -> None:
        lease = taken("video:1")
        caplog.set_level(logging.DEBUG, logger="django_tasklock")
        with sent(signals.lock_contended) as refusals, sent(signals.lock_held) as holds:
            assert locks.hold("video:1", LONG, by="alice") is None
        assert holds == []
        (said,) = refusals
        assert said["holder"].token == lease.token
        assert said["owner"].held_by == "alice"
        (record,) = caplog.records
        assert "refused to operator alice" in record.getMessage()

    def test_what_clears_it_says_who_held_it(self, caplog: pytest.LogCaptureFixture) -> None:
        held(by="alice", reason="a migration")
        caplog.clear()
        assert locks.clear("video:1", by="bob")
        assert caplog.records[-1].getMessage() == (
            "lock video:1 in store default, held by operator alice (a migration), "
            "was cleared by bob"
        )

    def test_it_can_be_pickled(self) -> None:
        info = held(by="alice", reason="a migration")
        again = pickle.loads(pickle.dumps(info))
        assert (again, again.held_by, again.reason) == (info, "alice", "a migration")

    @pytest.mark.parametrize(
        ("wrong", "error"),
        [
            ({"by": "al\nice"}, ValueError),
            ({"by": "a" * 256}, ValueError),
            ({"by": None}, TypeError),
            ({"reason": "\x1b[2J"}, ValueError),
            ({"reason": "\u202e"}, ValueError),
            ({"reason": "é" * 128}, ValueError),
            ({"reason": b"why"}, TypeError),
            ({"ttl": 0}, ValueError),
            ({"ttl": None}, TypeError),
            ({"ttl": 1e12}, ValueError),
            ({"name": "a name"}, ValueError),
            ({"wait": -1}, ValueError),
        ],
        ids=repr,
    )
    def test_what_cannot_be_meant_is_an_error(
        self, wrong: dict[str, Any], error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            locks.hold(**{"name": "video:1", "ttl": LONG, **wrong})
        assert not locks.is_locked("video:1")

    def test_texts_of_255_bytes_are_kept(self) -> None:
        by, reason = "维" * 85, "é" * 127
        held(by=by, reason=reason)
        assert (holder("video:1").held_by, holder("video:1").reason) == (by, reason)


class SilentAfterwards(FiveMethodStore):
    """A store that goes silent after it has granted a lock, and answers again later."""

    silent = 0

    def get(self, name: str) -> LockInfo | None:
        info = super().get(name)
        if info is not None and type(self).silent > 0:
            type(self).silent -= 1
            raise StoreUnavailable(self.alias)
        return info


def test_hold_that_raised_does_not_keep_the_lock(use_caches: UseCaches) -> None:
    """Its caller takes it for not held, and nobody would clear it."""
    backend = "tests.engine.test_hold.SilentAfterwards"
    locmem = "django.core.cache.backends.locmem.LocMemCache"
    use_caches({"default": {"BACKEND": locmem}}, {"default": {"BACKEND": backend}})
    SilentAfterwards.silent = 1
    with pytest.raises(StoreUnavailable):
        locks.hold("video:1", LONG, by="alice")
    until(lambda: not locks.is_locked("video:1"))


@pytest.mark.slow
def test_hold_of_a_process_that_is_interrupted_and_exits_does_not_keep_the_lock(
    on_redis: None,
) -> None:
    """Nobody takes over from an operator: it would last for its whole ttl."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = Random(seed)
    for _ in range(40):
        lease = taken("video:1")
        waiter = forked(hold_until_interrupted)
        until(lambda: waiting("video:1") == 1)
        # When the lock is handed over at the moment of the interrupt
        os.kill(waiter, signal.SIGINT)
        time.sleep(chance.uniform(0, 0.001))
        assert lease.release()
        _, status = os.waitpid(waiter, 0)
        # I expect it not to be held by somebody who does not know of it
        if os.waitstatus_to_exitcode(status) != IT_HOLDS:
            assert locks.get("video:1") is None
        locks.clear("video:1")


IT_HOLDS = 7


def hold_until_interrupted() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        locks.hold("video:1", 3600, "alice", wait=None)
    except KeyboardInterrupt:
        os._exit(0)
    os._exit(IT_HOLDS)


def forked(work: Callable[[], None]) -> int:
    """The process id of a child that does the work."""
    pid = fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return pid


def test_hold_in_another_store(use_caches: UseCaches) -> None:
    memory = {"BACKEND": "django_tasklock.stores.memory.MemoryStore"}
    locmem = "django.core.cache.backends.locmem.LocMemCache"
    use_caches({"default": {"BACKEND": locmem}}, {"default": memory, "other": memory})
    assert locks.using("other").hold("video:1", LONG, "alice", "why") is not None
    assert not locks.is_locked("video:1")
