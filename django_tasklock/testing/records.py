"""The contract of records: written under names, on conditions; noted beside locks; listed."""

from __future__ import annotations

import random

from ..stores.base import BaseStore, Note
from ..stores.records import ANY, FREE, KEEP, Change, Entry, Foreign, Held, Record
from .steps import (
    LONG_SECONDS,
    ROUNDING_SECONDS,
    ContractTests,
    a_lease,
    granted,
    listing,
    needs,
    new_name,
    until,
)

SHORT_SECONDS = LONG_SECONDS / 3


class Putting(ContractTests):
    """The contract of `put` and `get`, of which all verbs are made."""

    def test_a_record_is_put_where_nothing_is(self) -> None:
        """Or where it is already, as after a lost reply: the same one has the same token and
        version. It then gets the ttl of the later change."""
        store, name, record = self.make_store(), new_name(), a_lease(version="a")
        made(store, Change(name, FREE, record, LONG_SECONDS), record)
        made(store, Change(name, FREE, record | {"at": 1.0}, SHORT_SECONDS), record)
        until(lambda: (there(store, name).left or 0) <= SHORT_SECONDS + ROUNDING_SECONDS)
        for other in (a_lease(), a_lease(record["token"], "b")):
            refused(store, Change(name, FREE, other, LONG_SECONDS), record)
        assert_has(there(store, name), name, record)

    def test_any_replaces_and_removes_whatever_is_there(self) -> None:
        store, name = self.make_store(), new_name()
        fences = []
        for record in (a_lease(), a_lease()):
            entry = made(store, Change(name, ANY, record, LONG_SECONDS), record)
            fences.append(entry.fence or 0)
        assert not store.supports_fence or fences[0] < fences[1]
        for _ in range(2):
            assert store.put([Change(name, ANY, None)]).made
            assert store.get([name]) == [None]

    def test_held_expects_that_very_lease(self) -> None:
        store, name, record, other = self.make_store(), new_name(), a_lease(), a_lease()
        store.put([Change(name, FREE, record, LONG_SECONDS)])
        changes = [Change(name, Held(other["token"]), new, 60.0) for new in (KEEP, other, None)]
        changes.append(Change(name, Foreign("0" * 32), None))
        for change in changes:
            left = refused(store, change, record).left
            assert (left or 0) <= LONG_SECONDS + ROUNDING_SECONDS
        assert store.put([Change(name, Held(record["token"]), KEEP, SHORT_SECONDS)]).made
        until(lambda: (there(store, name).left or 0) <= SHORT_SECONDS + ROUNDING_SECONDS)
        changes.append(Change(name, Held(record["token"]), None))
        assert [store.put([change]).made for change in changes] == [False] * 4 + [True]
        assert [store.put([change]).made for change in changes] == [False] * 5
        assert store.get([name]) == [None]

    def test_held_may_expect_a_version_of_the_lease(self) -> None:
        store, name, first = self.make_store(), new_name(), a_lease()
        needs(store.atomic_release, "compares and writes in one step")
        token = first["token"]
        fence = made(store, Change(name, FREE, first, LONG_SECONDS), first).fence
        second, third = a_lease(token, "a"), a_lease(token, "b")
        for record, expected in ((second, None), (third, "a"), (third, "a")):
            change = Change(name, Held(token, expected), record, LONG_SECONDS)
            assert made(store, change, record).fence == fence
        for late in (a_lease(token, "c"), KEEP, None):
            refused(store, Change(name, Held(token, "a"), late, LONG_SECONDS), third)
        assert store.put([Change(name, Held(token, "b"), None)]).made
        assert store.get([name]) == [None]

    def test_keep_asks_and_changes_nothing(self) -> None:
        store, name, record = self.make_store(), new_name(), a_lease()
        done = store.put([Change(name, FREE, KEEP)])
        assert (done.made, *done.entries) == (True, None)
        assert store.get([name]) == [None]
        store.put([Change(name, FREE, record, LONG_SECONDS)])
        refused(store, Change(name, FREE, KEEP), record)
        for expect in (ANY, Held(record["token"])):
            made(store, Change(name, expect, KEEP), record)

    def test_several_changes_are_made_or_none(self) -> None:
        store = self.make_store()
        needs(store.puts_together, "makes several changes in one step")
        held, free, taken = sorted(new_name() for _ in range(3))[::-1]
        old, new, obstacle = a_lease(), a_lease(), a_lease()
        store.put([Change(held, FREE, old, LONG_SECONDS), Change(taken, FREE, obstacle, 60.0)])
        changes = [Change(held, Held(old["token"]), None), Change(free, FREE, new, LONG_SECONDS)]
        for last in (Change(taken, FREE, a_lease(), LONG_SECONDS), Change(taken, FREE, KEEP)):
            done = store.put([*changes, last])
            assert not done.made
        for entries in (done.entries, store.get([held, free, taken])):
            assert entries[1] is None
            assert_has(entries[0], held, old)
            assert_has(entries[2], taken, obstacle)
        done = store.put([*changes, Change(taken, Held(obstacle["token"]), KEEP)])
        assert done.made
        for entries in (done.entries, store.get([held, free, taken])):
            assert entries[0] is None
            assert_has(entries[1], free, new)
            assert_has(entries[2], taken, obstacle)

    def test_a_fence_is_at_least_the_number_that_is_asked_for(self) -> None:
        store, name, record = self.make_store(), new_name(), a_lease()
        needs(store.fences_are_times, "has times as fences")
        change = Change(name, FREE, record, LONG_SECONDS)
        first = made(store, change, record).fence or 0
        ahead = first + 10**6
        for least in (ahead, ahead - 5, 0):
            assert assert_has(store.put([change], least).entries[0], name, record).fence == ahead
        assert there(store, name).fence == ahead
        assert store.put([Change(name, ANY, None)]).made
        assert (made(store, change, record).fence or 0) > ahead

    def test_get_answers_for_each_name_in_their_order(self) -> None:
        store, names = self.make_store(), [new_name() for _ in range(5)]
        records = {name: a_lease() for name in names[1:4]}
        for name, record in records.items():
            store.put([Change(name, FREE, record, LONG_SECONDS)])
        found = store.get(names)
        assert (found[0], found[4]) == (None, None)
        for name, entry in zip(names[1:4], found[1:4], strict=True):
            assert_has(entry, name, records[name])
        assert [*store.get([])] == []


def assert_has(entry: Entry | None, name: str, record: Record) -> Entry:
    """This record is under the name, and ends."""
    assert entry is not None, f"nothing is under {name!r}"
    assert entry.record is not None
    found = (entry.name, entry.record["token"], entry.record.get("version"))
    assert found == (name, record["token"], record.get("version"))
    assert entry.left is not None
    assert entry.left > 0
    return entry


def made(store: BaseStore, change: Change, record: Record) -> Entry:
    """What is there after a change that is made: this record."""
    done = store.put([change])
    assert done.made
    return assert_has(done.entries[0], change.name, record)


def refused(store: BaseStore, change: Change, record: Record) -> Entry:
    """What is there after a change that is not made: this record still."""
    done = store.put([change])
    assert not done.made
    return assert_has(done.entries[0], change.name, record)


def there(store: BaseStore, name: str) -> Entry:
    """What is under a name."""
    (entry,) = store.get([name])
    assert entry is not None, f"nothing is under {name!r}"
    return entry


class Noting(ContractTests):
    """By notes tasks recognise a redelivery, by reservations they keep duplicates out of the queue.
    Both are records under names that no lock has."""

    def test_a_note_keeps_any_text(self) -> None:
        """Until an empty one removes it, and beside the lock of the same name."""
        store = self.make_store()
        holder = granted(store)
        for key in (new_key(), holder.name):
            for text in ("started", '{"ä": "ö"}', " ", "a\n\\x41\t\x7f", "锁 🔒", "{}" * 400):
                store.set_note(Note(key, text, LONG_SECONDS))
                assert store.get_note(key) == text
                assert store.reserve(key, text, LONG_SECONDS) is None
            for _ in range(2):
                store.set_note(Note(key, "", LONG_SECONDS))
                assert store.get_note(key) is None
        assert holder.release()


def new_key() -> str:
    """A key as long as they get: a word, a task's name, and a lock's name of 200 characters."""
    return f"run videos.tasks.процесс {new_name()}:".ljust(240, "n")


class Seeing(ContractTests):
    """The contract of `list`, and `walk`, `page` and `count`, which are made of it, of a store with
    ``supports_listing``."""

    def test_listing_shows_the_soonest_to_expire_first(self) -> None:
        store, prefix = listing(self.make_store()), f"{new_name()}*[x]:"
        order = [f"{prefix}{number}" for number in range(7)]
        for number, name in random.sample(list(enumerate(order)), len(order)):
            granted(store, name, ttl=LONG_SECONDS * (number + 1))
        granted(store)
        assert [info.name for info in store.page(prefix)] == order
        assert [info.name for info in store.walk(prefix)] == order
        assert store.count(prefix) == 7
        assert [info.name for info in store.page(prefix, limit=3)] == order[:3]
        assert [info.name for info in store.page(prefix, limit=3, offset=5)] == order[5:]
        assert store.page(prefix, limit=0) == []
        assert set(order) <= {info.name for info in store.walk()}
        assert store.count() >= 8
        assert store.page(prefix[:-1] + "y") == []

    def test_listing_follows_what_happens(self) -> None:
        store, prefix = listing(self.make_store()), f"{new_name()}:"
        holders = {
            word: granted(store, prefix + word, ttl=0.3 if word == "over" else LONG_SECONDS)
            for word in ("kept", "released", "cleared", "over", "extended")
        }
        holders["released"].release()
        store.clear(prefix + "cleared")
        assert holders["extended"].extend(LONG_SECONDS / 2)
        until(lambda: store.count(prefix) == 2)
        assert [info.name for info in store.page(prefix)] == [prefix + "extended", prefix + "kept"]
