"""Records are written under names, on conditions."""

from __future__ import annotations

from ..stores.base import BaseStore
from ..stores.records import ANY, FREE, KEEP, Change, Entry, Foreign, Held, Record
from .steps import LONG_SECONDS, ROUNDING_SECONDS, Contract, a_lease, needs, new_name, until

__all__ = ["Putting"]

SHORT_SECONDS = LONG_SECONDS / 3


class Putting(Contract):
    """The contract of `put` and `get`, of which all verbs are made."""

    def test_a_record_is_put_where_nothing_is(self) -> None:
        store, name, record = self.make_store(), new_name(), a_lease()
        for _ in range(2):  # As after a lost reply.
            done = store.put([Change(name, FREE, record, LONG_SECONDS)])
            assert done.made
            assert_has(done.entries[0], name, record)
        other = store.put([Change(name, FREE, a_lease(), LONG_SECONDS)])
        assert not other.made
        assert_has(other.entries[0], name, record)
        assert_has(there(store, name), name, record)

    def test_the_same_record_has_the_same_token_and_version(self) -> None:
        store, name, record = self.make_store(), new_name(), a_lease(version="a")
        assert store.put([Change(name, FREE, record, LONG_SECONDS)]).made
        assert store.put([Change(name, FREE, record | {"at": 1.0}, SHORT_SECONDS)]).made
        until(lambda: (there(store, name).left or 0) <= SHORT_SECONDS + ROUNDING_SECONDS)
        later = a_lease(record["token"], "b")
        assert not store.put([Change(name, FREE, later, LONG_SECONDS)]).made
        assert_has(there(store, name), name, record)

    def test_any_replaces_and_removes_whatever_is_there(self) -> None:
        store, name = self.make_store(), new_name()
        fences = []
        for record in (a_lease(), a_lease()):
            done = store.put([Change(name, ANY, record, LONG_SECONDS)])
            assert done.made
            fences.append(assert_has(done.entries[0], name, record).fence or 0)
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
            done = store.put([change])
            assert not done.made
            left = assert_has(done.entries[0], name, record).left
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
        fence = store.put([Change(name, FREE, first, LONG_SECONDS)]).entries[0]
        second, third = a_lease(token, "a"), a_lease(token, "b")
        for record, expected in ((second, None), (third, "a"), (third, "a")):
            done = store.put([Change(name, Held(token, expected), record, LONG_SECONDS)])
            assert done.made
            entry = assert_has(done.entries[0], name, record)
            assert fence is not None
            assert entry.fence == fence.fence
        for late in (a_lease(token, "c"), KEEP, None):
            done = store.put([Change(name, Held(token, "a"), late, LONG_SECONDS)])
            assert not done.made
            assert_has(done.entries[0], name, third)
        assert store.put([Change(name, Held(token, "b"), None)]).made
        assert store.get([name]) == [None]

    def test_keep_asks_and_changes_nothing(self) -> None:
        store, name, record = self.make_store(), new_name(), a_lease()
        done = store.put([Change(name, FREE, KEEP)])
        assert (done.made, *done.entries) == (True, None)
        assert store.get([name]) == [None]
        store.put([Change(name, FREE, record, LONG_SECONDS)])
        for expect, made in ((FREE, False), (ANY, True), (Held(record["token"]), True)):
            done = store.put([Change(name, expect, KEEP)])
            assert done.made == made
            assert_has(done.entries[0], name, record)

    def test_several_changes_are_made_or_none(self) -> None:
        store = self.make_store()
        needs(store.puts_together, "makes several changes in one step")
        held, free, taken = sorted(new_name() for _ in range(3))[::-1]
        old, new, obstacle = a_lease(), a_lease(), a_lease()
        store.put([Change(held, FREE, old, LONG_SECONDS), Change(taken, FREE, obstacle, 60.0)])
        changes = [Change(held, Held(old["token"]), None), Change(free, FREE, new, LONG_SECONDS)]
        done = store.put([*changes, Change(taken, FREE, a_lease(), LONG_SECONDS)])
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
        first = assert_has(store.put([change]).entries[0], name, record).fence or 0
        ahead = first + 10**6
        for least in (ahead, ahead - 5, 0):
            assert assert_has(store.put([change], least).entries[0], name, record).fence == ahead
        assert there(store, name).fence == ahead
        assert store.put([Change(name, ANY, None)]).made
        assert (assert_has(store.put([change]).entries[0], name, record).fence or 0) > ahead

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


def there(store: BaseStore, name: str) -> Entry:
    """What is under a name."""
    (entry,) = store.get([name])
    assert entry is not None, f"nothing is under {name!r}"
    return entry
