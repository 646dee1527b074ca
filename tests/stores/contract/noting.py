"""Notes and reservations, beyond what each store of one's own is tested for."""

from __future__ import annotations

import time
from unittest import SkipTest

from django_tasklock._values import clock
from django_tasklock._values.lock_info import LockInfo
from django_tasklock._values.owner import owner_record
from django_tasklock._values.tokens import new_token
from django_tasklock.exceptions import ListingNotSupported
from django_tasklock.stores.base import LISTED_KEY_PREFIX, BaseStore, Grant, Note
from django_tasklock.testing.noting import new_key
from django_tasklock.testing.steps import (
    LONG_SECONDS,
    ROUNDING_SECONDS,
    TIMEOUT_SECONDS,
    Contract,
    granted,
    in_threads,
    needs,
    new_name,
)

__all__ = ["OtherNotes"]


class OtherNotes(Contract):
    """What is told apart, kept and listed; `LeaseNotes` has a default for each method but
    `reservations`, made of the required ones."""

    def test_a_note_keeps_any_text(self) -> None:
        store, key = self.make_store(), new_key()
        for text in (" ", "\\x41 \\u0041 \\", "a\nb\t\x7f", "锁 🔒 é", "{}" * 400):
            store.set_note(Note(key, text, LONG_SECONDS))
            assert store.get_note(key) == text
            assert store.reserve(key, text, LONG_SECONDS) is None
            assert store.unreserve(key, text) is True

    def test_a_grant_says_whether_its_note_was_written(self) -> None:
        store, name, key, token = self.make_store(), new_name(), new_key(), new_token()
        owner, note = owner_record(), Note(key, "started", LONG_SECONDS)
        grant = store.acquire_with_note(name, token, LONG_SECONDS, owner, note)
        assert isinstance(grant, Grant)
        written = "started" if grant.noted else None
        assert store.get_note(key) == written
        # As after a lost reply.
        assert isinstance(store.acquire_with_note(name, token, LONG_SECONDS, owner, note), Grant)
        assert store.get_note(key) == written
        other = store.acquire_with_note(
            name, new_token(), LONG_SECONDS, owner, Note(key, "other", LONG_SECONDS)
        )
        assert not isinstance(other, Grant)
        assert store.get_note(key) == written
        assert store.release(name, token, grant.proof)

    def test_a_grant_keeps_the_note_of_another_run(self) -> None:
        store, name, key, token = self.make_store(), new_name(), new_key(), new_token()
        owner, note = owner_record(), Note(key, "started", LONG_SECONDS)
        store.set_note(Note(key, "ended", LONG_SECONDS))
        grant = store.acquire_with_note(name, token, LONG_SECONDS, owner, note)
        assert isinstance(grant, Grant)
        assert not grant.noted
        assert store.get_note(key) == "ended"
        assert store.release(name, token, grant.proof)

    def test_an_empty_note_removes_the_note(self) -> None:
        store, key = self.make_store(), new_key()
        _, name, token, grant = granted(store)
        store.set_note(Note(key, "started", LONG_SECONDS))
        assert store.release_with_note(name, token, grant.proof, Note(key, "", LONG_SECONDS))
        assert not store.get_note(key)
        for _ in range(2):
            store.set_note(Note(key, "", LONG_SECONDS))
            assert not store.get_note(key)
            store.set_note(Note(key, "started", LONG_SECONDS))

    def test_each_is_kept_for_its_ttl_from_its_last_change(self) -> None:
        """Notes and reservations: the test waits once for both."""
        store, ttl = self.make_store(), 0.6
        note, reservation = new_key(), new_key()
        store.set_note(Note(note, "a", LONG_SECONDS))
        assert store.reserve(reservation, "a", LONG_SECONDS) is None
        before = clock.now()
        store.set_note(Note(note, "b", ttl))
        assert store.reserve(reservation, "a", ttl) is None
        lasted: dict[str, float] = {}
        while len(lasted) < 2:
            assert clock.now() < before + TIMEOUT_SECONDS
            for key in (note, reservation):
                if store.get_note(key) is None:
                    lasted.setdefault(key, clock.now() - before)
            time.sleep(0.02)
        assert ttl <= min(lasted.values())
        assert max(lasted.values()) < ttl + ROUNDING_SECONDS

    def test_a_reservation_writes_over_the_given_text(self) -> None:
        store, key = self.make_store(), new_key()
        store.set_note(Note(key, "started", LONG_SECONDS))
        assert store.reserve(key, "a", LONG_SECONDS) == "started"
        assert store.reserve(key, "a", LONG_SECONDS, over="other") == "started"
        assert store.reserve(key, "a", LONG_SECONDS, over="started") is None
        assert store.reserve(key, "b", LONG_SECONDS, over="started") == "a"
        assert store.get_note(key) == "a"

    def test_a_held_lock_prevents_a_new_reservation(self) -> None:
        store, key = self.make_store(), new_key()
        holder = granted(store, owner=owner_record("videos.process", "id-4"))
        name = holder.name
        answer = store.reserve(key, "a", LONG_SECONDS, unless_held=name)
        assert isinstance(answer, LockInfo)
        assert (answer.name, answer.token) == (name, holder.token)
        assert (answer.owner.task, answer.owner.task_id) == ("videos.process", "id-4")
        assert store.get_note(key) is None
        assert store.reserve(key, "a", LONG_SECONDS) is None
        # It is reserved already: a lock that is held since then ends no reservation.
        assert store.reserve(key, "a", LONG_SECONDS, unless_held=name) is None
        assert store.reserve(key, "b", LONG_SECONDS, unless_held=name) == "a"
        assert holder.release()
        assert store.reserve(key, "b", LONG_SECONDS, unless_held=name) == "a"
        assert store.unreserve(key, "a") is True
        assert store.reserve(key, "b", LONG_SECONDS, unless_held=name) is None

    def test_reservations_are_listed(self) -> None:
        """The soonest to end first, without notes and other reservations."""
        store, prefix = self.make_store(), f"{new_key()} "
        try:
            assert store.reservations(prefix) == []
        except ListingNotSupported as error:
            raise SkipTest("only for a store that lists reservations") from error
        keys = [f"{LISTED_KEY_PREFIX}{prefix}{word}" for word in ("größer", "b", "c", "d")]
        for key, ttl in zip(
            keys, (4 * LONG_SECONDS, 2 * LONG_SECONDS, 3 * LONG_SECONDS, LONG_SECONDS), strict=True
        ):
            assert store.reserve(key, f"id of {key}", ttl) is None
        assert store.reserve(keys[1], "another", LONG_SECONDS) == f"id of {keys[1]}"
        assert store.reserve(f"not {LISTED_KEY_PREFIX}{prefix}", "a", LONG_SECONDS) is None
        store.set_note(Note(f"{LISTED_KEY_PREFIX}{prefix}a note", "a", LONG_SECONDS))
        found = store.reservations(prefix)
        assert [key for key, _, _ in found] == [keys[at] for at in (3, 1, 2, 0)]
        assert all(text == f"id of {key}" for key, text, _ in found)
        assert all(ttl is not None and 0 < ttl <= 4 * LONG_SECONDS for _, _, ttl in found)
        assert store.reservations(prefix, limit=2)[-1].key == keys[1]
        assert store.unreserve(keys[3], f"id of {keys[3]}") is True
        assert store.unreserve(keys[1], "another") is False
        assert store.reserve(keys[2], f"id of {keys[2]}", 5 * LONG_SECONDS) is None
        assert store.reserve(keys[0], "over it", LONG_SECONDS, over=f"id of {keys[0]}") is None
        found = store.reservations(prefix)
        assert [key for key, _, _ in found] == [keys[at] for at in (0, 1, 2)]
        assert found[0].text == "over it"

    def test_of_many_reservations_at_once_one_is_made(self) -> None:
        needs(self.excludes, "excludes callers of the same moment")
        store = self.make_store()
        for _ in range(5):
            _reserve_at_once(store, new_key())


def _reserve_at_once(store: BaseStore, key: str) -> None:
    answers: dict[str, str | LockInfo | None] = {}

    def ask() -> None:
        text = new_token()
        answers[text] = store.reserve(key, text, LONG_SECONDS)

    in_threads(8, ask)
    (first,) = [text for text, answer in answers.items() if answer is None]
    assert sorted(map(str, answers.values())) == sorted(["None", *[first] * 7])
