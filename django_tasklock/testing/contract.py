"""What `StoreContract` tests."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable

from .._values import clock
from .._values.owner import Owner, owner_record
from .._values.tokens import new_token
from ..exceptions import StoreUnavailable
from ..stores.base import BaseStore, Note
from ..stores.records import ANY, FREE, KEEP, Change, Entry, Foreign, Held, Record
from .steps import (
    LONG_SECONDS,
    ROUNDING_SECONDS,
    ContractTests,
    Granted,
    a_lease,
    asked,
    assert_has,
    assert_held_by,
    eventually_granted,
    granted,
    in_threads,
    needs,
    new_key,
    new_name,
    refused,
    there,
    until,
)

SHORT_SECONDS = LONG_SECONDS / 3
# Legal names that break careless code.
ODD_NAMES = (
    "a", "A", "a:", ":a", "aa", "a:b:c", "a%3Ab", "*", "[a-z]?", "{slot}", "é", "锁", "'\"\\;--",
    "../../name", "n" * 200,
)  # fmt: skip


class StoreContract(ContractTests):
    """What every store keeps. A subclass implements ``make_store``, and ``make_silent_store``
    where that is possible."""

    # `put` and `get`, of which all verbs are made.

    def test_a_record_is_put_where_nothing_is(self) -> None:
        """Or where it is already, as after a lost reply: the same one has the same token and
        version. It then gets the ttl of the later change."""
        store, name, record = self.make_store(), new_name(), a_lease(version="a")
        made(store, Change(name, FREE, record, LONG_SECONDS), record)
        made(store, Change(name, FREE, record | {"at": 1.0}, SHORT_SECONDS), record)
        until(lambda: (there(store, name).left or 0) <= SHORT_SECONDS + ROUNDING_SECONDS)
        for other in (a_lease(), a_lease(record["token"], "b")):
            not_made(store, Change(name, FREE, other, LONG_SECONDS), record)
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
            assert (not_made(store, change, record).left or 0) <= LONG_SECONDS + ROUNDING_SECONDS
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
            not_made(store, Change(name, Held(token, "a"), late, LONG_SECONDS), third)
        assert store.put([Change(name, Held(token, "b"), None)]).made
        assert store.get([name]) == [None]

    def test_keep_asks_and_changes_nothing(self) -> None:
        store, name, record = self.make_store(), new_name(), a_lease()
        done = store.put([Change(name, FREE, KEEP)])
        assert (done.made, *done.entries) == (True, None)
        assert store.get([name]) == [None]
        store.put([Change(name, FREE, record, LONG_SECONDS)])
        not_made(store, Change(name, FREE, KEEP), record)
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
        ahead = (made(store, change, record).fence or 0) + 10**6
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

    # Notes, by which tasks recognise a redelivery, and reservations, which keep duplicates out of
    # the queue. Both are records under names that no lock has.

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

    # `list`; and `walk`, `page` and `count`, which are made of it.

    def test_listing_shows_the_soonest_to_expire_first(self) -> None:
        store, prefix = self.make_store(), f"{new_name()}*[x]:"
        needs(store.supports_listing, "lists")
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
        store, prefix = self.make_store(), f"{new_name()}:"
        needs(store.supports_listing, "lists")
        holders = {
            word: granted(store, prefix + word, ttl=0.3 if word == "over" else LONG_SECONDS)
            for word in ("kept", "released", "cleared", "over", "extended")
        }
        holders["released"].release()
        store.clear(prefix + "cleared")
        assert holders["extended"].extend(LONG_SECONDS / 2)
        until(lambda: store.count(prefix) == 2)
        assert [info.name for info in store.page(prefix)] == [prefix + "extended", prefix + "kept"]

    # `acquire`.

    def test_a_lock_is_granted_to_one_holder(self) -> None:
        """And a refusal, `find` and a list describe the lease that holds it."""
        store = self.make_store()
        owner = owner_record("videos.процесс", "id-1") | {"ttl": 12.5, "renew": True}
        holder = granted(store, owner=owner)
        found = [assert_held_by(holder)]
        if store.supports_listing:
            found += store.page(holder.name)
        assert {info.fence for info in found} == {holder.grant.fence}
        for info in (*found, refused(store, holder.name)):
            assert (info.name, info.token) == (holder.name, holder.token)
            assert info.owner == Owner.from_record(owner)
            assert (info.granted, info.renewing) == (12.5, True)

    def test_each_legal_name_is_a_lock_of_its_own(self) -> None:
        store, unique = self.make_store(), secrets.token_hex(4)
        holders = [granted(store, (unique + odd)[:200]) for odd in ODD_NAMES]
        for holder in holders:
            assert_held_by(holder)
            assert holder.release(), holder.name
            assert store.find(holder.name) is None, holder.name

    def test_a_lease_lasts_for_its_ttl(self) -> None:
        """Never for less, or two would hold the lock; longer in stores that count whole seconds."""
        store = self.make_store()
        leases = [(clock.now(), ttl, granted(store, ttl=ttl)) for ttl in (0.001, 0.05, 0.4, 1.3)]
        for before, ttl, holder in leases:
            until(lambda: store.find(holder.name) is None)  # noqa: B023
            assert ttl <= clock.now() - before < ttl + ROUNDING_SECONDS
            assert_held_by(granted(store, holder.name))

    def test_of_many_calls_at_once_one_is_granted(self) -> None:
        store = self.make_store()
        for _ in range(5):
            name, answers = new_name(), list[object]()
            in_threads(8, lambda: answers.append(asked(store, name)))  # noqa: B023
            (holder,) = [each for each in answers if isinstance(each, Granted)]
            assert_held_by(holder)

    def test_holders_never_overlap(self) -> None:
        store, name, inside = self.make_store(), new_name(), threading.Lock()
        overlaps: list[Granted] = []
        fences: list[int | None] = []

        def work() -> None:
            for _ in range(5):
                holder = eventually_granted(store, name)
                if inside.acquire(blocking=False):
                    fences.append(holder.grant.fence)
                    time.sleep(0.001)
                    inside.release()
                else:
                    overlaps.append(holder)
                assert holder.release()

        in_threads(4, work)
        assert overlaps == []
        assert len(fences) == 20
        assert not store.supports_fence or fences == sorted({fence or 0 for fence in fences})

    def test_fences_grow_with_every_lease(self) -> None:
        store, name = self.make_store(), new_name()
        fences = []
        for turn in range(4):
            holder = eventually_granted(store, name, ttl=0.05 if turn == 1 else LONG_SECONDS)
            fences.append(holder.grant.fence)
            if turn == 0:
                holder.release()
            elif turn == 2:
                store.clear(name)
        grow = sorted({fence or 0 for fence in fences})
        assert fences == (grow if store.supports_fence else [None] * 4)

    # `release`, `extend` and `clear`.

    def test_release_needs_the_token(self) -> None:
        """Who is late has that of a lease that is over."""
        late, following = _late_and_following(self.make_store())
        for token in (late.token, new_token()):
            assert late.store.release(late.name, token) is False
            assert late.store.clear(late.name, token) is False
            assert_held_by(following)
        assert following.release() is True
        assert late.store.find(late.name) is None
        assert following.release() is False

    def test_extend_needs_the_token(self) -> None:
        late, following = _late_and_following(self.make_store())
        for token in (late.token, new_token()):
            assert late.store.extend(late.name, token, 10 * LONG_SECONDS) is False
            assert (assert_held_by(following).ttl or 0) <= LONG_SECONDS + ROUNDING_SECONDS

    def test_of_many_releases_at_once_one_returns_true(self) -> None:
        store = self.make_store()
        needs(store.atomic_release, "releases in one step")
        holder = granted(store)
        answers: list[bool] = []
        in_threads(8, lambda: answers.append(holder.release()))
        assert sorted(answers) == [False] * 7 + [True]

    def test_an_extended_lease_outlives_its_first_ttl(self) -> None:
        """It is held when an alike one, which was granted after it, is over. An extension does not
        bring that one back."""
        store = self.make_store()
        holder, over = granted(store, ttl=1.0), granted(store, ttl=1.0)
        assert holder.extend(LONG_SECONDS) is True
        until(lambda: store.find(over.name) is None)
        assert_held_by(holder)
        assert over.extend(LONG_SECONDS) is False
        assert store.find(over.name) is None

    def test_clear_with_a_token_removes_that_lease_only(self) -> None:
        """Without one, whatever holds the lock."""
        store = self.make_store()
        holder = granted(store)
        assert store.clear(holder.name, digest="0" * 32) is False
        assert_held_by(holder)
        assert store.clear(holder.name, holder.token) is True
        assert store.find(holder.name) is None
        assert store.clear(holder.name, holder.token) is False
        granted(store, holder.name)
        assert store.clear(holder.name) is True
        assert store.find(holder.name) is None
        assert store.clear(holder.name) is False

    # While the server does not answer.

    def test_an_outage_is_store_unavailable(self) -> None:
        """It is never reported as "held", as "not held", or as the client's own error."""
        store, name = self.make_silent_store(), new_name()
        needs(store is not None, "can be made without its server (make_silent_store)")
        assert store is not None
        change = Change(name, FREE, a_lease(), LONG_SECONDS)
        calls: list[Callable[[], object]] = [
            lambda: store.put([change]), lambda: store.get([name]), lambda: [*store.list()],
        ]  # fmt: skip
        for call in calls if store.supports_listing else calls[:2]:
            named = None
            try:
                call()
            except StoreUnavailable as error:
                named = error.store
            assert named == store.alias, "an outage is hidden"


def made(store: BaseStore, change: Change, record: Record) -> Entry:
    """What is there after a change that is made: this record."""
    done = store.put([change])
    assert done.made
    return assert_has(done.entries[0], change.name, record)


def not_made(store: BaseStore, change: Change, record: Record) -> Entry:
    """What is there after a change that is not made: this record still."""
    done = store.put([change])
    assert not done.made
    return assert_has(done.entries[0], change.name, record)


def _late_and_following(store: BaseStore) -> tuple[Granted, Granted]:
    """Who holds a lock no more, and who holds it now."""
    late = granted(store, ttl=0.05)
    return late, eventually_granted(store, late.name)
