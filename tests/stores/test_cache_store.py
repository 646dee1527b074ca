"""A plain cache cannot compare and delete in one step, so a lease stops acting before its end.

And one that keeps nothing is no store for locks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from celery import Celery
from django.core.cache import caches

from django_tasklock import InvalidLockConfig, StoreUnavailable, lock, locks
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.celery import LockedTask
from django_tasklock.signals import lock_lost
from django_tasklock.stores import cache as cache_module
from django_tasklock.stores import stores
from django_tasklock.stores.base import Extension, Grant, Note
from django_tasklock.stores.cache import MARGIN_SECONDS, CacheStore
from django_tasklock.stores.records import Held
from tests.conftest import UseCaches
from tests.interruptions import Interrupt, signalled
from tests.steps import LONG, held_by, in_child, taken
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("on_locmem")


@pytest.mark.parametrize("verb", ["release", "extend", "clear"])
def test_a_lease_that_is_about_to_end_is_left_to_expire(
    monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The next holder may have the key by the time that a change of it arrives."""
    lease = taken("video:1", ttl=60)
    store: Any = stores["default"]
    made: list[str] = []
    for change in ("set", "delete", "touch"):
        monkeypatch.setattr(store.cache, change, lambda *_, **__: made.append("changed"))
    # By its own clock this process holds it for less than the margin.
    store._own[lease.token] -= 60 - MARGIN_SECONDS * 0.9
    # Nor is that an outage of the store, for an operator. And nothing is lost by a release.
    told: bool = locks.clear("video:1") if verb == "clear" else getattr(lease, verb)()
    assert told is (verb == "release")
    assert made == []
    assert locks.is_locked("video:1")


def test_a_block_that_ends_just_before_its_lease_has_lost_nothing() -> None:
    store: Any = stores["default"]
    lost: list[str] = []

    def note_loss(reason: str, **_: object) -> None:
        lost.append(reason)

    lock_lost.connect(note_loss)
    try:
        with lock("video:1", ttl=60) as lease:
            renewal = [Extension("video:1", lease.token, 60)]
            assert store.extend_many(renewal) == [True]
            store._own[lease.token] -= 60 - MARGIN_SECONDS * 0.9
            assert store.extend_many(renewal) == [None], "it comes late, and is not made"
            assert lease.held
    finally:
        lock_lost.disconnect(note_loss)
    assert lost == []


@pytest.mark.parametrize("error", [Interrupt, TimeoutError])
def test_what_a_signal_handler_raises_is_no_outage(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """Only what the cache's client raises is one, and that may be any exception."""
    store: Any = stores["default"]

    def wait(*_: object) -> None:
        until(lambda: False)

    def fail(*_: object) -> None:
        raise error("of the client")

    monkeypatch.setattr(store.cache, "add", wait)
    with pytest.raises(error, match="from outside"), signalled(error("from outside")):
        locks.acquire("video:1")
    monkeypatch.setattr(store.cache, "add", fail)
    with pytest.raises(StoreUnavailable, match="of the client"), signalled(error("from outside")):
        locks.acquire("video:1")


def test_who_dies_in_a_takeover_delays_the_next_one_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache_module, "CLEARING_SECONDS", 0.5)
    dead = {**owner_record(), "start": owner_record()["start"] - 1000}
    token, store = held_by(dead, "video:1"), cast("CacheStore", stores["default"])
    store._own.clear()  # It is another process's lease, which a third one has begun to clear.
    assert store._is_first(Held(token))
    assert taken("video:1", wait=LONG / 4).held


@pytest.mark.usefixtures("each_fork")
def test_of_the_children_of_a_dead_holder_one_takes_over(
    use_caches: UseCaches, tmp_path: Path
) -> None:
    """They do not take its leases for their own, whose change needs no care."""
    location = {"BACKEND": "django.core.cache.backends.filebased.FileBasedCache"}
    use_caches({"default": {**location, "LOCATION": str(tmp_path)}})

    def holder() -> list[bool]:
        lease, store = taken("video:1", renew=False), cast("CacheStore", stores["default"])
        # Another child is about to clear it.
        assert store._is_first(Held(lease.token))
        return [in_child(lambda: store.clear("video:1", lease.token)), lease.held]

    assert in_child(holder) == [False, True]


def test_an_emptied_cache_has_forgotten_the_lock() -> None:
    """As one that was started again. Its holder notices at its next question."""
    lease = taken("video:1")
    caches["default"].clear()
    assert taken("video:1").held
    assert lease.held, "nobody has asked the store yet"
    assert lease.extend() is False
    assert not lease.held


def test_locks_in_files(use_caches: UseCaches, tmp_path: Path) -> None:
    backend = "django.core.cache.backends.filebased.FileBasedCache"
    use_caches({"default": {"BACKEND": backend, "LOCATION": str(tmp_path)}}, {"default": {}})
    assert_locks()


def assert_locks() -> None:
    """What each cache must be able to do."""
    lease, store = taken("video:1", ttl=60), stores["default"]
    assert locks.acquire("video:1") is None
    assert lease.extend(120)
    held = locks.get("video:1")
    assert held is not None
    assert held.token == lease.token
    assert 60 < (held.ttl or 0) <= 120
    store.set_note(Note("key", "text", 60))
    assert store.reserve("key", "other", 60) == "text"
    assert lease.release()
    assert not locks.is_locked("video:1")
    taken("video:1", ttl=60)
    assert locks.clear("video:1")
    assert taken("video:1", ttl=60).release()


class TestCacheThatKeepsNothing:
    """Also where no system check runs: under pytest, and in a worker."""

    @pytest.fixture
    def on_dummy(self, on_locmem: None, use_caches: UseCaches) -> None:
        backend = "django.core.cache.backends.dummy.DummyCache"
        use_caches({"default": {"BACKEND": backend}}, None)

    @pytest.mark.usefixtures("on_dummy")
    def test_43_no_lock_is_granted_and_no_work_is_done(self) -> None:
        done: list[str] = []
        app = Celery("eager", broker="memory://", set_as_current=False, fixups=[])
        app.conf.update(task_always_eager=True, task_eager_propagates=True)

        @app.task(base=LockedTask, lazy=False, shared=False, lock_name="job")
        def task() -> None:
            done.append("task")

        def block() -> None:
            with lock("video:1"):
                done.append("block")

        for call in (block, task.delay, lambda: locks.acquire("video:1"), block):
            with pytest.raises(InvalidLockConfig, match=r"a DummyCache: it grants every lock"):
                call()
        assert done == []

    @pytest.mark.parametrize("ended", [True, False])
    def test_a_key_that_is_gone_at_the_first_look_is_no_proof(
        self, monkeypatch: pytest.MonkeyPatch, ended: bool
    ) -> None:
        """The process was stopped between the two calls, or somebody has cleared the cache."""
        cache: Any = stores["default"]
        real = cache.cache.add

        def added(key: str, value: object, lifetime: float) -> bool:
            made = bool(real(key, value, lifetime))
            if ended:
                until(lambda: cache.cache.get(key) is None)
            else:
                cache.cache.clear()
                monkeypatch.setattr(cache.cache, "add", real)
            return made

        monkeypatch.setattr(cache.cache, "add", added)
        ttl = 0.05 if ended else 60
        assert isinstance(cache.acquire(["a"], new_token(), ttl, owner_record()), Grant)
