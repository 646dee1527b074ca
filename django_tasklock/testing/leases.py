"""The contract of a lock: granted, and held; and an outage of its server."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable

from .._values import clock
from .._values.owner import owner_record
from .._values.tokens import new_token
from ..exceptions import StoreUnavailable
from ..stores.base import BaseStore, Extension
from ..stores.records import FREE, Change
from .steps import (
    LONG_SECONDS,
    ROUNDING_SECONDS,
    ContractTests,
    Granted,
    a_lease,
    asked,
    assert_describes,
    assert_held_by,
    eventually_granted,
    granted,
    in_threads,
    lasts_from_now,
    needs,
    new_name,
    refused,
    until,
)

ODD_NAMES = (
    "a", "A", "a:", ":a", "aa", "a:b:c", "a%3Ab", "*", "[a-z]?", "{slot}", "é", "锁", "'\"\\;--",
    "../../name", "n" * 200,
# Legal names that break careless code.
)  # fmt: skip


class Granting(ContractTests):
    """The contract of `acquire`."""

    def test_a_lock_is_granted_to_one_holder(self) -> None:
        """And a refusal, `find` and a list describe the lease that holds it."""
        store, before = self.make_store(), clock.now()
        owner = owner_record("videos.процесс", "id-1") | {"ttl": 12.5, "renew": True}
        holder = granted(store, owner=owner)
        found = [assert_held_by(holder)]
        if store.supports_listing:
            found += store.page(holder.name)
        assert {info.fence for info in found} == {holder.grant.fence}
        for info in (*found, refused(store, holder.name)):
            assert_describes(info, holder, owner, before)
            assert (info.granted, info.renewing) == (12.5, True)

    def test_each_legal_name_is_a_lock_of_its_own(self) -> None:
        store, unique = self.make_store(), secrets.token_hex(4)
        holders = [granted(store, (unique + odd)[:200]) for odd in ODD_NAMES]
        for holder in holders:
            assert_held_by(holder)
            assert holder.release(), holder.name
            assert store.find(holder.name) is None, holder.name

    def test_asking_again_with_the_same_token_is_granted_again(self) -> None:
        """A client asks again after a lost reply, and its own lease must not refuse it. The lease
        lasts from then, and from an extension."""
        store = self.make_store()
        first = granted(store)
        for ttl in (4 * LONG_SECONDS, LONG_SECONDS):
            again = granted(store, first.name, token=first.token, ttl=ttl)
            assert again.grant.fence == first.grant.fence
            lasts_from_now(again, ttl)
            assert again.extend(ttl / 2) is True
            lasts_from_now(again, ttl / 2)
        assert refused(store, first.name).token == first.token
        assert again.release()
        assert store.find(first.name) is None

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


class Holding(ContractTests):
    """The contract of `release`, `extend` and `clear`."""

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
            assert_held_by(following, at_most=LONG_SECONDS)

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


def _late_and_following(store: BaseStore) -> tuple[Granted, Granted]:
    """Who holds a lock no more, and who holds it now."""
    late = granted(store, ttl=0.05)
    return late, eventually_granted(store, late.name)


class Outages(ContractTests):
    """The contract of all verbs while the server does not answer."""

    def test_an_outage_is_store_unavailable(self) -> None:
        """It is never reported as "held", as "not held", or as the client's own error."""
        store, name, token = self.make_silent_store(), new_name(), new_token()
        needs(store is not None, "can be made without its server (make_silent_store)")
        assert store is not None
        change = Change(name, FREE, a_lease(), LONG_SECONDS)
        verbs: dict[str, Callable[[], object]] = {
            "put": lambda: store.put([change]),
            "get": lambda: store.get([name]),
            "acquire": lambda: store.acquire([name], token, LONG_SECONDS, owner_record()),
            "extend": lambda: store.extend(name, token, LONG_SECONDS),
            "extend_many": lambda: store.extend_many([Extension(name, token, LONG_SECONDS)]),
            "release": lambda: store.release(name, token),
            "clear": lambda: store.clear(name),
            "get_note": lambda: store.get_note(name),
        }
        if store.supports_listing:
            verbs |= {"list": lambda: [*store.list()], "count": store.count}
        for verb, call in verbs.items():
            named = None
            try:
                call()
            except StoreUnavailable as error:
                named = error.store
            assert named == store.alias, f"{verb} hides that the server is silent"
