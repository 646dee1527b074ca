"""Many locks are looked at: walked through."""

from __future__ import annotations

from unittest import SkipTest

from .._values.owner_record import COOLING, MARK, operator_record, owner_record
from .._values.tokens import new_token
from ..exceptions import ListingNotSupported
from ..stores.base import BaseStore, Grant
from .steps import LONG_SECONDS, Contract, granted, new_name, until

__all__ = ["Finding"]

TASKS = ("videos.Transcode", "videos.процесс", "отчёт")
NO_SUCH_START = 1
"""of a process: the start of no other one in this boot"""


class Finding(Contract):
    """The contract of `walk` and `endless`."""

    def test_walk_sees_every_lock_in_the_order_of_the_list(self) -> None:
        store, prefix = self.make_listing_store(), f"{new_name()}:"
        _hold_some(store, prefix)
        assert [info.name for info in store.walk(prefix)] == [
            info.name for info in store.list(prefix)
        ]
        assert list(store.walk(f"{prefix}none")) == []

    def test_walk_sees_once_what_is_held_all_the_time(self) -> None:
        store, prefix = self.make_listing_store(), f"{new_name()}:"
        tokens = {f"{prefix}{number}": new_token() for number in range(12)}
        for number, (name, token) in enumerate(tokens.items()):
            granted(store, name, token, ttl=LONG_SECONDS * (1 + number))
        names: list[str] = []
        for info in store.walk(prefix):
            if not names:
                # What was read is released, what was not is extended to the end.
                store.release(info.name, tokens[info.name])
                last = f"{prefix}1"
                assert store.extend(last, tokens[last], LONG_SECONDS * 20)
            names.append(info.name)
        assert sorted(names) == sorted(tokens)

    def test_endless_yields_no_lease(self) -> None:
        store, name = self.make_store(), new_name()
        granted(store, name)
        try:
            assert name not in {info.name for info in store.endless()}
        except ListingNotSupported as error:
            raise SkipTest("only for a store that can distinguish its keys") from error

    def test_a_store_that_cannot_list_says_so(self) -> None:
        store = self.make_store()
        if store.supports_listing:
            raise SkipTest("only for a store that cannot list")
        try:
            list(store.walk())
        except ListingNotSupported:
            return
        raise AssertionError("it answered, though supports_listing is False")

    def make_listing_store(self) -> BaseStore:
        store = self.make_store()
        if not store.supports_listing:
            raise SkipTest("only for a store that lists")
        return store


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
        answer = store.acquire(name, new_token(), LONG_SECONDS * (1 + number), owner)
        assert isinstance(answer, Grant)
    until(lambda: store.count(prefix) == len(owners))
