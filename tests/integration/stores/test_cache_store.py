"""A plain cache cannot compare and delete in one step, so a lease stops acting before its end."""

from __future__ import annotations

from typing import Any

import pytest

from django_tasklock import Lease, locks
from django_tasklock._values import clock
from django_tasklock.stores import stores
from django_tasklock.stores.cache import RELEASE_MARGIN_SECONDS
from tests.steps import taken

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
    lease._proof.at = clock.now() + RELEASE_MARGIN_SECONDS * 0.9
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
