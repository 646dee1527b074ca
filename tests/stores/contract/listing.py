"""Many locks are looked at: walked through, and searched for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from unittest import SkipTest

from django_tasklock._values.lock_info import LockInfo
from django_tasklock._values.owner import COOLING, MARK, operator_record, owner_record
from django_tasklock.exceptions import ListingNotSupported
from django_tasklock.stores.base import BaseStore, Note
from django_tasklock.testing.steps import (
    LONG_SECONDS,
    Contract,
    granted,
    listing,
    needs,
    new_name,
    until,
)

__all__ = ["Listing"]

TASKS = ("videos.Transcode", "videos.процесс", "отчёт")
NO_SUCH_START = 1
"""of a process: the start of no other one in this boot"""


class Listing(Contract):
    """The contract of `walk`, `endless` and `scan`, and of a store that cannot list."""

    def test_walk_sees_every_lock_in_the_order_of_the_list(self) -> None:
        store, prefix = listing(self.make_store()), f"{new_name()}:"
        _hold_some(store, prefix)
        assert [info.name for info in store.walk(prefix)] == [
            info.name for info in store.list(prefix)
        ]
        assert list(store.walk(f"{prefix}none")) == []

    def test_walk_sees_once_what_is_held_all_the_time(self) -> None:
        store, prefix = listing(self.make_store()), f"{new_name()}:"
        holders = {}
        for number in range(12):
            name = f"{prefix}{number}"
            holders[name] = granted(store, name, ttl=LONG_SECONDS * (1 + number))
        names: list[str] = []
        for info in store.walk(prefix):
            if not names:
                # What was read is released, what was not is extended to the end.
                holders[info.name].release()
                assert holders[f"{prefix}1"].extend(LONG_SECONDS * 20)
            names.append(info.name)
        assert sorted(names) == sorted(holders)

    def test_endless_yields_no_lease(self) -> None:
        store = self.make_store()
        name = granted(store).name
        assert name not in {info.name for info in _found(store.endless)}

    def test_scan_finds_the_locks_and_nothing_else(self) -> None:
        store, prefix = self.make_store(), f"{new_name()}*[x]:"
        assert _found(lambda: store.scan(prefix)) == []
        tokens = {}
        for number in range(3):
            holder = granted(store, f"{prefix}{number}")
            tokens[holder.name] = holder.token
        granted(store)
        store.set_note(Note(f"{prefix}note", "a", LONG_SECONDS))
        assert {info.name: info.token for info in store.scan(prefix)} == tokens
        assert set(tokens) < {info.name for info in store.scan()}

    def test_a_store_that_cannot_list_says_so(self) -> None:
        store = self.make_store()
        needs(not store.supports_listing, "cannot list")
        for question in (store.list, store.count, lambda: list(store.walk())):
            try:
                question()
            except ListingNotSupported:
                continue
            raise AssertionError(f"{question} answered, though supports_listing is False")


def _found(search: Callable[[], Iterable[LockInfo]]) -> list[LockInfo]:
    """What a search finds; the test is skipped if the store has none."""
    try:
        return list(search())
    except ListingNotSupported as error:
        raise SkipTest("only for a store that can distinguish its keys from others") from error


def _hold_some(store: BaseStore, prefix: str) -> None:
    owners = []
    for number in range(8):
        owner = owner_record(TASKS[number % 3], f"ID-{number}")
        if number == 2:
            owner[MARK] = COOLING
        if number in (3, 5):
            owner["start"] = NO_SUCH_START
        owners.append(owner)
    owners.append(operator_record("Алиса", "Straße"))
    owners.append({"host": "elsewhere", "pid": 7, "ttl": 1.5, "renew": True})
    for number, owner in enumerate(owners):
        name = f"{prefix}{'Video' if number % 2 else 'video'}:{number}"
        granted(store, name, ttl=LONG_SECONDS * (1 + number), owner=owner)
    until(lambda: store.count(prefix) == len(owners))
