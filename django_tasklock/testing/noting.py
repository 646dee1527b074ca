"""What a store keeps beside the locks: notes, counts and reservations."""

from __future__ import annotations

import threading
import time
from unittest import SkipTest

from .. import clock
from ..exceptions import ListingNotSupported
from ..lease import LockInfo, new_token
from ..owner import owner_record
from ..stores.base import LISTED, Grant, Note
from .steps import (
    LONG,
    PATIENCE,
    ROUNDING,
    Contract,
    granted,
    in_threads,
    needs,
    new_name,
)

__all__ = ["Noting"]


def new_key() -> str:
    """As long as they get: a word, a task's name, and a lock's name of 200 characters."""
    return f"queued videos.tasks.процесс {new_name()}:".ljust(240, "n")


class Noting(Contract):
    """The contract of `remember`, `recall`, `tally`, `reserve`, `unreserve`, `reservations`,
    `held`, `scan`."""

    def test_a_note_is_recalled(self) -> None:
        store, key = self.make_store(), new_key()
        assert store.recall(key) is None
        store.remember(Note(key, "started", LONG))
        assert store.recall(key) == "started"
        store.remember(Note(key, '{"Ende": "größer"}', LONG))
        assert store.recall(key) == '{"Ende": "größer"}'
        assert store.recall(new_key()) is None

    def test_a_note_is_no_lock(self) -> None:
        store, name = self.make_store(), new_name()
        store.remember(Note(name, "a", LONG))
        assert store.get(name) is None
        token = new_token()
        grant = granted(store, name, token)
        assert store.recall(name) == "a"
        assert store.release(name, token, grant.proof)
        assert store.recall(name) == "a"

    def test_a_release_writes_its_note_if_it_releases(self) -> None:
        store, name, key, token = self.make_store(), new_name(), new_key(), new_token()
        grant = granted(store, name, token)
        note = Note(key, "ended", LONG)
        assert store.release(name, new_token(), note=note) is False
        assert store.recall(key) is None
        assert store.release(name, token, grant.proof, note) is True
        assert store.recall(key) == "ended"
        store.remember(Note(key, "other", LONG))
        assert store.release(name, token, grant.proof, note) is False
        assert store.recall(key) == "other"

    def test_an_acquire_writes_its_note_if_it_is_granted_or_says_that_it_did_not(self) -> None:
        store, name, key, token = self.make_store(), new_name(), new_key(), new_token()
        owner, note = owner_record(), Note(key, "started", LONG)
        grant = store.acquire_noted(name, token, LONG, owner, note)
        assert isinstance(grant, Grant)
        written = "started" if grant.noted else None
        assert store.recall(key) == written
        # As after a lost reply.
        assert isinstance(store.acquire_noted(name, token, LONG, owner, note), Grant)
        assert store.recall(key) == written
        other = store.acquire_noted(name, new_token(), LONG, owner, Note(key, "other", LONG))
        assert not isinstance(other, Grant)
        assert store.recall(key) == written
        assert store.release(name, token, grant.proof)

    def test_an_empty_note_says_nothing(self) -> None:
        store, name, key, token = self.make_store(), new_name(), new_key(), new_token()
        grant = granted(store, name, token)
        store.remember(Note(key, "started", LONG))
        assert store.release(name, token, grant.proof, Note(key, "", LONG))
        assert not store.recall(key)
        for _ in range(2):
            store.remember(Note(key, "", LONG))
            assert not store.recall(key)
            store.remember(Note(key, "started", LONG))

    def test_a_tally_counts_from_nothing(self) -> None:
        store, key = self.make_store(), new_key()
        assert [store.tally(key, LONG) for _ in range(3)] == [1, 2, 3]
        assert store.tally(key, LONG, 5) == 8
        assert store.tally(key, LONG, -1) == 7
        assert store.tally(new_key(), LONG) == 1

    def test_each_is_kept_for_its_ttl_from_its_last_change(self) -> None:
        """Note, count and reservation: one wait for the three."""
        store, ttl = self.make_store(), 0.6
        note, count, reservation = new_key(), new_key(), new_key()
        store.remember(Note(note, "a", LONG))
        assert store.reserve(reservation, "a", LONG) is None
        before = clock.now()
        store.remember(Note(note, "b", ttl))
        assert store.reserve(reservation, "a", ttl) is None
        lasted: dict[str, float] = {}
        counts: list[int] = []
        while len(lasted) < 2 or clock.now() < before + 2 * ttl:
            assert clock.now() < before + PATIENCE
            counts.append(store.tally(count, ttl))
            for key in (note, reservation):
                if store.recall(key) is None:
                    lasted.setdefault(key, clock.now() - before)
            time.sleep(0.02)
        assert ttl <= min(lasted.values())
        assert max(lasted.values()) < ttl + ROUNDING
        assert counts == list(range(1, len(counts) + 1))

    def test_of_many_who_tally_at_once_each_counts(self) -> None:
        store, key = self.make_store(), new_key()
        needs(store.atomic_release, "acts in one step")
        counts: list[int] = []
        in_threads(8, lambda: counts.extend(store.tally(key, LONG) for _ in range(5)))
        assert sorted(counts) == list(range(1, 41))

    def test_a_key_is_reserved_for_one_text(self) -> None:
        store, key = self.make_store(), new_key()
        assert store.reserve(key, "a", LONG) is None
        assert store.reserve(key, "b", LONG) == "a"
        assert store.reserve(key, "a", LONG) is None
        assert store.reserve(new_key(), "b", LONG) is None

    def test_a_reservation_is_ended_by_its_text(self) -> None:
        store, key = self.make_store(), new_key()
        assert store.unreserve(key, "a") is False
        assert store.reserve(key, "a", LONG) is None
        assert store.unreserve(key, "b") is False
        assert store.reserve(key, "b", LONG) == "a"
        assert store.unreserve(key, "a") is True
        assert store.unreserve(key, "a") is False
        assert store.reserve(key, "b", LONG) is None

    def test_a_text_that_counts_as_none_is_reserved_over(self) -> None:
        store, key = self.make_store(), new_key()
        store.remember(Note(key, "started", LONG))
        assert store.reserve(key, "a", LONG) == "started"
        assert store.reserve(key, "a", LONG, over="other") == "started"
        assert store.reserve(key, "a", LONG, over="started") is None
        assert store.reserve(key, "b", LONG, over="started") == "a"
        assert store.recall(key) == "a"

    def test_a_lock_that_is_held_is_in_the_way_of_a_new_reservation(self) -> None:
        store, key, name, token = self.make_store(), new_key(), new_name(), new_token()
        owner = owner_record("videos.process", "id-4")
        grant = store.acquire(name, token, LONG, owner)
        assert isinstance(grant, Grant)
        holder = store.reserve(key, "a", LONG, unless_held=name)
        assert isinstance(holder, LockInfo)
        assert (holder.name, holder.token) == (name, token)
        assert (holder.owner.task, holder.owner.task_id) == ("videos.process", "id-4")
        assert store.recall(key) is None
        assert store.reserve(key, "a", LONG) is None
        assert store.release(name, token, grant.proof)
        assert store.reserve(key, "b", LONG, unless_held=name) == "a"
        assert store.unreserve(key, "a") is True
        assert store.reserve(key, "b", LONG, unless_held=name) is None

    def test_reservations_of_the_queue_are_listed(self) -> None:
        """The soonest to end first; whatever else is noted or reserved is not among them."""
        store, prefix = self.make_store(), f"{new_key()} "
        try:
            assert store.reservations(prefix) == []
        except ListingNotSupported as error:
            raise SkipTest("only for a store that lists reservations") from error
        keys = [f"{LISTED}{prefix}{word}" for word in ("größer", "b", "c", "d")]
        for key, ttl in zip(keys, (4 * LONG, 2 * LONG, 3 * LONG, LONG), strict=True):
            assert store.reserve(key, f"id of {key}", ttl) is None
        assert store.reserve(keys[1], "another", LONG) == f"id of {keys[1]}"
        assert store.reserve(f"not {LISTED}{prefix}", "a", LONG) is None
        store.remember(Note(f"{LISTED}{prefix}a note", "a", LONG))
        found = store.reservations(prefix)
        assert [key for key, _, _ in found] == [keys[at] for at in (3, 1, 2, 0)]
        assert all(text == f"id of {key}" for key, text, _ in found)
        assert all(ttl is not None and 0 < ttl <= 4 * LONG for _, _, ttl in found)
        assert store.reservations(prefix, limit=2)[-1].key == keys[1]
        assert store.unreserve(keys[3], f"id of {keys[3]}") is True
        assert store.unreserve(keys[1], "another") is False
        assert store.reserve(keys[2], f"id of {keys[2]}", 5 * LONG) is None
        assert store.reserve(keys[0], "over it", LONG, over=f"id of {keys[0]}") is None
        found = store.reservations(prefix)
        assert [key for key, _, _ in found] == [keys[at] for at in (0, 1, 2)]
        assert found[0].text == "over it"

    def test_of_many_who_reserve_at_once_one_has_it(self) -> None:
        needs(self.excludes, "excludes callers of the same moment")
        store = self.make_store()
        for _ in range(5):
            key, together = new_key(), threading.Barrier(8)
            answers: dict[str, str | LockInfo | None] = {}

            def ask(
                key: str = key,
                together: threading.Barrier = together,
                answers: dict[str, str | LockInfo | None] = answers,
            ) -> None:
                text = new_token()
                together.wait(PATIENCE)
                answers[text] = store.reserve(key, text, LONG)

            in_threads(8, ask)
            (first,) = [text for text, answer in answers.items() if answer is None]
            assert sorted(map(str, answers.values())) == sorted(["None", *[first] * 7])

    def test_held_names_those_that_somebody_holds(self) -> None:
        store = self.make_store()
        names = [new_name() for _ in range(6)]
        assert store.held(names) == set()
        tokens = {name: new_token() for name in names[:4]}
        proofs = {name: granted(store, name, token).proof for name, token in tokens.items()}
        assert store.release(names[0], tokens[names[0]], proofs[names[0]])
        assert store.held(names) == set(names[1:4])
        assert store.held([]) == set()

    def test_scan_finds_the_locks_and_nothing_else(self) -> None:
        store, prefix = self.make_store(), f"{new_name()}*[x]:"
        try:
            assert list(store.scan(prefix)) == []
        except ListingNotSupported as error:
            raise SkipTest("only for a store that can tell its keys from others") from error
        tokens = {f"{prefix}{number}": new_token() for number in range(3)}
        for name, token in tokens.items():
            granted(store, name, token)
        granted(store, new_name())
        store.remember(Note(f"{prefix}note", "a", LONG))
        found = {info.name: info.token for info in store.scan(prefix)}
        assert found == tokens
        assert set(tokens) < {info.name for info in store.scan()}
