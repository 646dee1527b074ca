"""What happened to the locks is kept for a while."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from django_tasklock.exceptions import ListingNotSupported
from django_tasklock.stores.base import BaseStore
from django_tasklock.testing.steps import ContractTests, granted, needs, new_name
from tests.inside import KINDS, Event, Owner

__all__ = ["Recording"]

CLOCKS_SECONDS = 60.0
"""by how much the clock of a server may differ from that of this host"""
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

    def test_events_are_no_locks(self) -> None:
        store, name = self.make_recording_store(), new_name()
        store.record([an_event(store, name)])
        assert store.find(name) is None
        granted(store, name)
        if store.supports_listing:
            assert [info.name for info in store.page(name)] == [name]
        assert store.clear(name)
        assert len(store.events(name)) == 1
