"""Many locks are looked at: searched, walked through, and asked for together."""

from __future__ import annotations

from unittest import SkipTest

from .._values.liveness import Liveness
from .._values.ordering import ORDERS, in_order
from .._values.owner import Owner
from .._values.owner_record import COOLING, MARK, operator_record, owner_record
from .._values.tokens import new_token
from ..exceptions import ListingNotSupported
from ..stores.base import BaseStore, Grant
from ..stores.criteria import Criteria
from .steps import LONG_SECONDS, Contract, granted, new_name, until

__all__ = ["Finding"]

TASKS = ("videos.Transcode", "videos.процесс", "отчёт")
NO_SUCH_START = 1
"""of a process: the start of no other one in this boot"""


class Finding(Contract):
    """The contract of `search`, `walk` and `endless`."""

    def test_search_finds_what_a_look_at_each_lock_finds(self) -> None:
        store, prefix = self.make_listing_store(), f"{new_name()}:"
        _hold_some(store, prefix)
        everything = store.list(prefix)
        host, pid = Owner.current().host, Owner.current().pid
        liveness = Liveness()
        for criteria in (
            Criteria(prefix),
            Criteria(prefix + "video"),
            Criteria(prefix, words=("video:3",)),
            Criteria(prefix, words=("transcode", "id-4")),
            Criteria(prefix, words=("процесс",)),
            Criteria(prefix, words=("алиса",)),
            Criteria(prefix, words=("strasse",)),
            Criteria(prefix, words=(str(pid),)),
            Criteria(prefix, words=("nothing",)),
            Criteria(prefix, task=TASKS[0]),
            Criteria(prefix, task=TASKS[0].lower()),
            Criteria(prefix, host=host),
            Criteria(prefix, host="elsewhere"),
            Criteria(prefix, within=LONG_SECONDS * 4.5),
            Criteria(prefix, gone=True),
            Criteria(prefix, cooling=True),
            Criteria(prefix, words=("video",), task=TASKS[1], host=host),
        ):
            matching = [info for info in everything if criteria.matches(info, liveness)]
            for order in ORDERS:
                expected = [info.name for info in in_order(matching, order)]
                found = store.search(criteria, order)
                assert sorted(info.name for info in found.infos) == sorted(expected), criteria
                assert not found.more
                if order.strip("-") not in ("waiters", "wait"):  # Nobody waits.
                    assert [info.name for info in found.infos] == expected, (criteria, order)
                some = store.search(criteria, order, 3)
                assert [info.name for info in some.infos] == [info.name for info in found.infos[:3]]
                assert some.more == (len(expected) > 3)

    def test_search_describes_leases_as_list_does(self) -> None:
        store, prefix = self.make_listing_store(), f"{new_name()}:"
        granted(store, f"{prefix}1")
        (listed,), (found,) = store.list(prefix), store.search(Criteria(prefix)).infos
        for field in (
            "name",
            "token",
            "owner",
            "acquired_at",
            "fence",
            "waiters",
            "store",
            "waiting_since",
        ):
            assert getattr(found, field) == getattr(listed, field), field
        assert found.ttl is not None
        assert listed.ttl is not None
        assert abs(found.ttl - listed.ttl) < LONG_SECONDS

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

    def test_walk_matching_sees_what_matches_in_the_order_of_the_list(self) -> None:
        store, prefix = self.make_listing_store(), f"{new_name()}:"
        _hold_some(store, prefix)
        listed = store.list(prefix)
        word = listed[0].name.casefold()
        for criteria in (
            Criteria(prefix=prefix),
            Criteria(prefix=prefix, words=(word,)),
            Criteria(prefix=prefix, task="of no lock"),
            Criteria(prefix=prefix, gone=True),
        ):
            found = [info.name for info in store.walk_matching(criteria)]
            assert found == [info.name for info in store.search(criteria).infos]
        assert [info.name for info in store.walk_matching(Criteria(prefix=prefix))] == [
            info.name for info in listed
        ]

    def test_endless_yields_no_lease(self) -> None:
        store, name = self.make_store(), new_name()
        granted(store, name)
        try:
            assert name not in {info.name for info in store.endless()}
        except ListingNotSupported as error:
            raise SkipTest("only for a store that can distinguish its keys") from error

    def test_a_store_that_cannot_list_cannot_search(self) -> None:
        store = self.make_store()
        if store.supports_listing:
            raise SkipTest("only for a store that cannot list")
        for question in (
            lambda: store.search(Criteria()),
            lambda: list(store.walk()),
            lambda: list(store.walk_matching(Criteria())),
        ):
            try:
                question()
            except ListingNotSupported:
                continue
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
