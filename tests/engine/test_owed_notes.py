"""What the renewal's thread tells the store later: the notes of calls that got no answer."""

from __future__ import annotations

import time

import pytest

from django_tasklock import StoreUnavailable
from django_tasklock.stores import stores
from django_tasklock.stores.base import Note
from tests.inside import keep_few_notes, kept, owe
from tests.steps import LONG, silent
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("on_redis")


def test_a_silent_store_is_asked_for_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others would get no answer either."""
    store, asked = stores["default"], []

    def unanswered(key: str, text: str) -> bool:
        asked.append(key)
        raise StoreUnavailable("default", "silent")

    with monkeypatch.context() as outage:
        outage.setattr(store, "unreserve", unanswered)
        for number in range(100):
            note = Note(f"key {number}", "text", LONG)
            store.set_note(note)
            owe("video:1", note, LONG, store, undo=True)
        time.sleep(1.5)
    assert len(asked) < 130, "each of them once at most, and few of them again"
    until(lambda: kept() == 0, "the end of all of them")
    assert not any(store.get_note(f"key {number}") for number in range(100))


def test_too_many_are_left_to_their_ttl(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_few_notes(monkeypatch, 5)
    silent(monkeypatch, "set_note")
    for number in range(100):
        owe("video:1", Note(f"key {number}", "text", LONG), LONG, stores["default"])
    assert kept() <= 6
