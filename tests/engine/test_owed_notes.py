"""What the renewal's thread tells the store later: the notes of calls that got no answer."""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_tasklock import StoreUnavailable, locks
from django_tasklock._engine import store_renewal
from django_tasklock._engine.renewal import renewal
from django_tasklock.stores import stores
from django_tasklock.stores.base import Note
from tests.conftest import UseRedis
from tests.greenlets import run_in_greenlets
from tests.steps import LONG, taken
from tests.waiting import until

WITH_GREENLETS = """
from django_tasklock import locks
from django_tasklock.stores.base import Note
from tests.waiting import until

lease = locks.acquire("video:1", ttl=60)
locks.store.get_note("any")  # Greenlets have a connection by now.
lease._keeper.give_up(lease, Note("key", "ended", 60.0))
until(lambda: not locks.is_locked("video:1"), "the release")
print(locks.store.get_note("key"))
"""


@pytest.mark.nightly
def test_beside_greenlets_it_uses_a_connection_of_its_own(use_redis: UseRedis) -> None:
    use_redis()
    assert run_in_greenlets(WITH_GREENLETS) == ["ended"]


def test_a_mistake_of_the_store_in_a_note_keeps_no_lock(
    use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_redis()

    def mistaken(note: Note) -> None:
        raise KeyError(note.key)

    monkeypatch.setattr(stores["default"], "set_note", mistaken)
    lease: Any = taken("video:1", ttl=LONG)
    lease._keeper.give_up(lease, Note("key", "ended", LONG))
    until(lambda: not locks.is_locked("video:1"), "the release")


def test_a_silent_store_is_asked_for_one_of_them(
    use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others would get no answer either."""
    use_redis()
    store, asked = stores["default"], []

    def silent(key: str, text: str) -> bool:
        asked.append(key)
        raise StoreUnavailable("default", "silent")

    with monkeypatch.context() as outage:
        outage.setattr(store, "unreserve", silent)
        for number in range(100):
            store.set_note(Note(f"key {number}", "text", LONG))
            note = Note(f"key {number}", "text", LONG)
            renewal.owe("video:1", note, LONG, store, undo=True)
        time.sleep(1.5)
    assert len(asked) < 130, "each of them once at most, and few of them again"
    until(lambda: not renewal.of(store).entries(), "the end of all of them")
    assert not any(store.get_note(f"key {number}") for number in range(100))


def test_too_many_are_left_to_their_ttl(
    use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_redis()
    monkeypatch.setattr(store_renewal, "MOST_OWED_NOTES", 5)
    own = renewal.of(stores["default"])
    monkeypatch.setattr(own, "start", lambda: None)  # Nothing is told.
    for number in range(100):
        renewal.owe("video:1", Note(f"key {number}", "text", LONG), LONG, stores["default"])
    assert len(own.entries()) == 6
    own.begin()
