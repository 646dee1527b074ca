"""Notes and reservations are kept beside the locks."""

from __future__ import annotations

from ..stores.base import Note
from .steps import LONG_SECONDS, Contract, granted, new_name

__all__ = ["Noting"]


class Noting(Contract):
    """By notes tasks recognise a redelivery, by reservations they keep duplicates out of the queue.
    Both are records under names that no lock has."""

    def test_a_note_is_kept_beside_the_lock_of_the_same_name(self) -> None:
        store, name = self.make_store(), new_name()
        assert store.get_note(name) is None
        store.set_note(Note(name, "a", LONG_SECONDS))
        assert store.find(name) is None
        holder = granted(store, name)
        assert store.get_note(name) == "a"
        assert holder.release()
        assert store.get_note(name) == "a"

    def test_a_note_keeps_any_text(self) -> None:
        """Until an empty one removes it."""
        store, key = self.make_store(), new_key()
        for text in ("started", '{"Ende": "größer"}', " ", "a\n\\x41\t\x7f", "锁 🔒", "{}" * 400):
            store.set_note(Note(key, text, LONG_SECONDS))
            assert store.get_note(key) == text
            assert store.reserve(key, text, LONG_SECONDS) is None
        for _ in range(2):
            store.set_note(Note(key, "", LONG_SECONDS))
            assert store.get_note(key) is None


def new_key() -> str:
    """A key as long as they get: a word, a task's name, and a lock's name of 200 characters."""
    return f"run videos.tasks.процесс {new_name()}:".ljust(240, "n")
