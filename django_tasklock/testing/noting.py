"""Notes and reservations are kept beside the locks."""

from __future__ import annotations

from .._values.tokens import new_token
from ..stores.base import Note
from .steps import LONG_SECONDS, Contract, granted, new_name

__all__ = ["Noting", "new_key"]


def new_key() -> str:
    """A key as long as they get: a word, a task's name, and a lock's name of 200 characters."""
    return f"queued videos.tasks.процесс {new_name()}:".ljust(240, "n")


class Noting(Contract):
    """By notes tasks recognise a redelivery, by reservations they keep duplicates out of the queue.
    `BaseStore` has both, made of the required methods; a store that lists has its own."""

    def test_a_note_is_read_back(self) -> None:
        store, key = self.make_store(), new_key()
        assert store.get_note(key) is None
        store.set_note(Note(key, "started", LONG_SECONDS))
        assert store.get_note(key) == "started"
        store.set_note(Note(key, '{"Ende": "größer"}', LONG_SECONDS))
        assert store.get_note(key) == '{"Ende": "größer"}'
        assert store.get_note(new_key()) is None

    def test_a_note_is_no_lock(self) -> None:
        store, name = self.make_store(), new_name()
        store.set_note(Note(name, "a", LONG_SECONDS))
        assert store.get(name) is None
        holder = granted(store, name)
        assert store.get_note(name) == "a"
        assert holder.release()
        assert store.get_note(name) == "a"

    def test_a_release_writes_its_note_if_it_releases(self) -> None:
        store, key = self.make_store(), new_key()
        _, name, token, grant = granted(store)
        note = Note(key, "ended", LONG_SECONDS)
        assert store.release_with_note(name, new_token(), None, note) is False
        assert store.get_note(key) is None
        assert store.release_with_note(name, token, grant.proof, note) is True
        assert store.get_note(key) == "ended"
        store.set_note(Note(key, "other", LONG_SECONDS))
        assert store.release_with_note(name, token, grant.proof, note) is False
        assert store.get_note(key) == "other"

    def test_a_key_is_reserved_for_one_text(self) -> None:
        store, key = self.make_store(), new_key()
        assert store.reserve(key, "a", LONG_SECONDS) is None
        assert store.reserve(key, "b", LONG_SECONDS) == "a"
        assert store.reserve(key, "a", LONG_SECONDS) is None
        assert store.reserve(new_key(), "b", LONG_SECONDS) is None

    def test_a_reservation_is_ended_by_its_text(self) -> None:
        store, key = self.make_store(), new_key()
        assert store.unreserve(key, "a") is False
        assert store.reserve(key, "a", LONG_SECONDS) is None
        assert store.unreserve(key, "b") is False
        assert store.reserve(key, "b", LONG_SECONDS) == "a"
        assert store.unreserve(key, "a") is True
        assert store.unreserve(key, "a") is False
        assert store.reserve(key, "b", LONG_SECONDS) is None
