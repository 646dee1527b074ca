"""A plain cache cannot compare and delete in one step, so a lease stops acting before its end.

And one that keeps nothing is no store for locks.
"""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from django.core.cache import caches

from django_tasklock import InvalidLockConfig, Lease, lock, locks
from django_tasklock._values import clock
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.celery import LockedTask
from django_tasklock.stores import stores
from django_tasklock.stores.base import Grant
from django_tasklock.stores.cache import RELEASE_MARGIN_SECONDS
from tests.conftest import UseCaches
from tests.steps import taken
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("on_locmem")


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that change a key, since the lock was taken."""
    cache: Any = stores["default"]
    made: list[str] = []
    for verb in ("set", "delete", "touch"):
        monkeypatch.setattr(cache.cache, verb, lambda *_, verb=verb, **__: made.append(verb))
    return made


def about_to_end() -> Lease:
    """A lease that this process holds for less than the margin, by its own clock."""
    lease = taken("video:1", ttl=60)
    lease._entry.proof.at = clock.now() + RELEASE_MARGIN_SECONDS * 0.9
    return lease


def test_a_lease_that_is_about_to_end_is_left_to_expire(changes: list[str]) -> None:
    """The next holder may have the key by the time that a delete arrives."""
    assert not about_to_end().release()
    assert changes == []
    assert locks.is_locked("video:1")


def test_a_lease_that_is_about_to_end_is_not_extended(changes: list[str]) -> None:
    """The next holder may have the key by the time that its record would be written over."""
    assert not about_to_end().extend()
    assert changes == []


def test_before_that_it_is_released_by_one_delete(changes: list[str]) -> None:
    lease = taken("video:1", ttl=60)
    lease.release()
    assert changes == ["delete"]


def test_an_emptied_cache_has_forgotten_the_lock() -> None:
    """As one that was started again. Its holder notices at its next question."""
    lease = taken("video:1")
    caches["default"].clear()
    assert taken("video:1").held
    assert lease.held, "nobody has asked the store yet"
    assert lease.extend() is False
    assert not lease.held


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

    def test_only_the_first_lease_costs_a_look(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cache: Any = stores["default"]
        asked: list[str] = []
        real = cache.cache.get

        def get(key: str, default: Any = None) -> Any:
            asked.append(key)
            return real(key, default)

        monkeypatch.setattr(cache.cache, "get", get)
        for number in range(3):
            taken(f"video:{number}", ttl=60)
        assert asked == ["lock:video:0"]

    def test_a_lease_that_ends_before_the_look_is_no_proof(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The process was stopped between the two calls."""
        cache: Any = stores["default"]
        real = cache.cache.add

        def added_long_ago(key: str, value: object, lifetime: float) -> bool:
            made = bool(real(key, value, lifetime))
            until(lambda: cache.cache.get(key) is None)
            return made

        monkeypatch.setattr(cache.cache, "add", added_long_ago)
        assert isinstance(cache.acquire("video:1", new_token(), 0.05, owner_record()), Grant)

    def test_a_cache_that_somebody_clears_meanwhile_is_not_blamed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache: Any = stores["default"]
        real = cache.cache.add

        def cleared_once(key: str, value: object, lifetime: float) -> bool:
            made = bool(real(key, value, lifetime))
            cache.cache.clear()
            monkeypatch.setattr(cache.cache, "add", real)
            return made

        monkeypatch.setattr(cache.cache, "add", cleared_once)
        assert taken("video:1", ttl=60).release()
