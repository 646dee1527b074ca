"""Notes are written with a grant and a release; keys are reserved for a text; and what happened to
the locks is kept for a while."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any

from django_tasklock import LockInfo
from django_tasklock.exceptions import ListingNotSupported
from django_tasklock.stores.base import BaseStore, Grant, Note
from django_tasklock.stores.records import FREE, KEEP, Change
from django_tasklock.testing.steps import (
    LONG_SECONDS,
    ROUNDING_SECONDS,
    TIMEOUT_SECONDS,
    ContractTests,
    a_lease,
    granted,
    in_threads,
    needs,
    new_key,
    new_name,
)
from tests.inside import KINDS, Event, Owner, clock, new_token, noting, owner_record

__all__ = ["Recording", "Reserving"]


class Reserving(ContractTests):
    """The contract of notes of grants and releases, of `update_note`, and of `reserve`,
    `unreserve` and `reservations`."""

    def test_a_grant_writes_its_note(self) -> None:
        """Not if it is refused, nor over the note of another run."""
        store = self.make_store()
        for key in (new_key(), new_name()):  # A long one is not the name of its note.
            self.grant_with_note(store, key)

    def grant_with_note(self, store: BaseStore, key: str) -> None:
        name, token, owner = new_name(), new_token(), owner_record()
        note = Note(key, "started", LONG_SECONDS)
        for _ in range(2):  # As after a lost reply.
            grant = store.acquire([name], token, LONG_SECONDS, owner, note)
            assert isinstance(grant, Grant)
            assert grant.noted
            assert store.get_note(key) == "started"
        other = Note(new_key(), "other", LONG_SECONDS)
        assert not isinstance(store.acquire([name], new_token(), 60.0, owner, other), Grant)
        assert store.get_note(other.key) is None
        assert store.release(name, token)
        store.set_note(Note(key, "ended", LONG_SECONDS))
        token = new_token()
        for _ in range(2):
            grant = store.acquire([name], token, LONG_SECONDS, owner, note)
            assert isinstance(grant, Grant)
            assert not grant.noted
            assert store.get_note(key) == "ended"

    def test_a_permit_that_is_refused_for_the_lock_itself_leaves_notes_as_they_are(self) -> None:
        store, base, note = self.make_store(), new_name(), Note(new_key(), "started", LONG_SECONDS)
        granted(store, base)
        lease, gate = Change(f"{base}#1", FREE, a_lease(), 60.0), Change(base, FREE, KEEP)
        for there in (None, "started"):  # As after an earlier run of the same message.
            assert not store.put([lease, gate, noting(note, FREE)]).made
            assert (store.find(lease.name), store.get_note(note.key)) == (None, there)
            store.set_note(note)

    def test_a_release_writes_its_note_if_it_releases(self) -> None:
        store, key, note = self.make_store(), new_key(), new_key()
        _, name, token, _ = granted(store)
        ended = Note(key, "ended", LONG_SECONDS)
        assert store.release(name, new_token(), ended) is False
        assert store.get_note(key) is None
        assert store.release(name, token, ended) is True
        assert store.get_note(key) == "ended"
        assert store.release(name, token, Note(note, "late", LONG_SECONDS)) is False
        assert store.get_note(note) is None
        assert store.release(name, granted(store, name).token, Note(key, "", LONG_SECONDS)) is True
        assert store.get_note(key) is None

    def test_a_key_is_reserved_for_one_text_until_that_ends_it(self) -> None:
        store, key = self.make_store(), new_key()
        assert store.unreserve(key, "a") is False
        for _ in range(2):
            assert store.reserve(key, "a", LONG_SECONDS) is None
            assert store.reserve(key, "b", LONG_SECONDS) == "a"
            assert store.unreserve(key, "b") is False
        assert store.unreserve(key, "a") is True
        assert store.unreserve(key, "a") is False
        assert store.reserve(key, "b", LONG_SECONDS) is None

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
        for over in ("", "started"):
            answer = store.reserve(key, "a", LONG_SECONDS, over=over, unless_held=name)
            assert isinstance(answer, LockInfo)
            assert (answer.name, answer.token) == (name, holder.token)
            assert (answer.owner.task, answer.owner.task_id) == ("videos.process", "id-4")
            assert store.get_note(key) == (over or None)
            store.set_note(Note(key, "started", LONG_SECONDS))
        assert store.reserve(key, "a", LONG_SECONDS, over="started") is None
        # It is reserved already: a lock that is held since then ends no reservation.
        assert store.reserve(key, "a", LONG_SECONDS, unless_held=name) is None
        assert store.reserve(key, "b", LONG_SECONDS, unless_held=name) == "a"
        assert holder.release()
        assert store.reserve(key, "b", LONG_SECONDS, over="a", unless_held=name) is None

    def test_reservations_are_listed(self) -> None:
        """The soonest to end first, without others, and apart from the locks."""
        store, prefix = self.make_store(), new_key()
        needs(store.supports_listing, "lists")
        keys = [f"queued {prefix}{word}" for word in ("größer", "b c", "n" * 240)]
        for key, ttl in zip(keys, (3.0, 1.0, 2.0), strict=True):
            assert store.reserve(key, f"id of {key}", ttl * LONG_SECONDS) is None
        store.set_note(Note(f"not queued {prefix}", "a", LONG_SECONDS))
        found = [each for each in store.reservations() if prefix in each.key]
        assert [key for key, _, _ in found] == [keys[at] for at in (1, 2, 0)]
        assert all(text == f"id of {key}" for key, text, _ in found)
        assert all(ttl is not None and 0 < ttl <= 3 * LONG_SECONDS for _, _, ttl in found)
        assert not {info.name for info in store.walk()} & {f" {key}" for key in keys}
        assert store.unreserve(keys[1], f"id of {keys[1]}") is True
        assert store.reserve(keys[2], f"id of {keys[2]}", 5 * LONG_SECONDS) is None
        assert store.reserve(keys[0], "over it", LONG_SECONDS, over=f"id of {keys[0]}") is None
        found = [each for each in store.reservations() if prefix in each.key]
        assert [(key, text) for key, text, _ in found] == [
            (keys[0], "over it"),
            (keys[2], f"id of {keys[2]}"),
        ]

    def test_an_update_writes_what_is_made_of_a_note(self) -> None:
        store, key = self.make_store(), new_key()
        longer = "{}+".format
        assert store.update_note(key, lambda _: None, LONG_SECONDS) is None
        assert store.update_note(key, lambda _: "a", LONG_SECONDS) == "a"
        for times in range(1, 5):
            assert store.update_note(key, longer, LONG_SECONDS) == "a" + "+" * times
        assert store.update_note(key, lambda text: text and None, LONG_SECONDS) == "a++++"
        assert store.get_note(key) == "a++++"
        assert store.update_note(key, lambda _: "", LONG_SECONDS) is None
        assert store.get_note(key) is None

    def test_of_many_updates_none_is_lost(self) -> None:
        store, key = self.make_store(), new_key()
        needs(store.atomic_release, "compares and writes in one step")
        made: list[str] = []

        def adds() -> None:
            for _ in range(3):
                made.append(own := new_token()[:6])
                store.update_note(key, lambda text: f"{text or ''} {own}", LONG_SECONDS)

        in_threads(4, adds)
        assert sorted((store.get_note(key) or "").split()) == sorted(made)


CLOCKS_SECONDS = 60.0
"""by how much the clock of a server may differ from that of this host"""
FLOOD = 10_200
"""more events than a store keeps of one kind"""
OWNER = Owner(host="worker-1", pid=7, task="videos.процесс", task_id="id-1", thread="MainThread")
OPERATOR = Owner(held_by="维" * 85, reason="数据库迁移")


def an_event(store: BaseStore, name: str, **fields: Any) -> Event:
    filled: dict[str, Any] = {
        "kind": "refused",
        "at": datetime.now(timezone.utc),
        "owner": OWNER,
    } | fields
    return Event(name=name, store=store.alias, **filled)


class Recording(ContractTests):
    """The contract of `record` and `events`, for stores that have them."""

    def make_recording_store(self) -> BaseStore:
        store = self.make_store()
        needs(store.supports_history, "keeps a history")
        return store

    def test_a_store_without_a_history_says_so(self) -> None:
        store = self.make_store()
        needs(not store.supports_history, "keeps no history")
        try:
            store.events()
        except ListingNotSupported:
            return
        raise AssertionError("it answered, though supports_history is False")

    def test_events_are_returned_as_they_were_recorded(self) -> None:
        store, name = self.make_recording_store(), new_name()
        since = datetime.now(timezone.utc) - timedelta(seconds=0.75)
        more = {"by": "维", "reason": "r" * 255, "count": 37, "since": since}
        full = an_event(store, name, holder=OPERATOR, seconds=0.5, **more)
        assert store.events(name) == []
        store.record([full])
        store.record([an_event(store, name, kind=kind, owner=Owner()) for kind in KINDS])
        found = store.events(name)
        assert [event.kind for event in found] == [*reversed(KINDS), "refused"]
        for event in found:
            assert event.at.tzinfo is not None
            assert abs(event.at - full.at) < timedelta(seconds=CLOCKS_SECONDS)
            assert (event.name, event.store) == (name, store.alias)
        first = found[-1]
        assert (first.owner, first.holder) == (OWNER, OPERATOR)
        assert (first.seconds, first.by, first.reason, first.count) == (0.5, "维", "r" * 255, 37)
        assert first.since is not None
        assert 0.7 < (first.at - first.since).total_seconds() < CLOCKS_SECONDS
        other = found[0]
        assert (other.owner, other.holder, other.by) == (Owner(), None, None)
        assert (other.count, other.since) == (1, None)

    def test_the_newest_events_of_a_lock_and_of_its_permits(self) -> None:
        store, name = self.make_recording_store(), new_name()
        mine = [f"{name}#{1 + number % 20}" if number % 2 else name for number in range(30)]
        others = [f"{name}x", f"{name}#", f"{name}#0", f"{name}#x", f"{name}#1#2", name[:-1]]
        store.record([an_event(store, each) for each in [*mine, *others]])
        assert [event.name for event in store.events(name)] == mine[::-1]
        assert [event.name for event in store.events(name, limit=3)] == mine[::-1][:3]
        assert store.events(name, limit=0) == []
        assert [event.name for event in store.events(f"{name}x")] == [f"{name}x"]
        everything = [event.name for event in store.events(limit=10**9)]
        assert [each for each in everything if each.startswith(name[:-1])] == [*mine, *others][::-1]
        assert len(store.events(limit=5)) == 5

    def test_the_newest_events_of_a_task(self) -> None:
        store, name, mine = self.make_recording_store(), new_name(), new_name()
        owner, other = Owner(task_id=mine), Owner(task_id=f"{mine}x")
        store.record([an_event(store, name, owner=owner, seconds=float(n)) for n in range(5)])
        store.record([an_event(store, f"{name}x", owner=owner)])
        store.record([an_event(store, name, owner=other, holder=owner)] * 5)
        assert [event.name for event in store.events(task_id=mine)] == [f"{name}x", *[name] * 5]
        assert [event.seconds for event in store.events(name, mine, 2)] == [4.0, 3.0]

    def test_a_flood_pushes_no_rare_event_out(self) -> None:
        """What operators did, and what was lost, is kept apart."""
        store, name = self.make_recording_store(), new_name()
        flood = [an_event(store, name) for _ in range(FLOOD)]
        rare = [an_event(store, name, kind=kind) for kind in ("lost", "cleared", "held")]
        store.record([flood[0], *rare, *flood[1:]])
        last = an_event(store, name, kind="taken over")
        store.record([last])
        found = store.events(name, limit=2 * FLOOD)
        assert {"taken over", "lost", "cleared", "held"} <= {event.kind for event in found}
        assert len(found) < FLOOD
        assert found[0].kind == "taken over"
        assert found == sorted(found, key=lambda event: event.at, reverse=True)
        assert store.events(name, limit=3) == found[:3]

    def test_events_are_no_locks(self) -> None:
        store, name = self.make_recording_store(), new_name()
        store.record([an_event(store, name)])
        assert store.find(name) is None
        granted(store, name)
        if store.supports_listing:
            assert [info.name for info in store.page(name)] == [name]
        assert store.clear(name)
        assert len(store.events(name)) == 1
