"""Locks are granted to one holder, for a time."""

from __future__ import annotations

import secrets
import threading
import time

from .._values import clock
from .._values.owner import owner_record
from .steps import (
    LONG_SECONDS,
    ROUNDING_SECONDS,
    Contract,
    Holder,
    asked,
    assert_describes,
    assert_held_by,
    eventually_granted,
    granted,
    in_threads,
    lasts_from_now,
    new_name,
    refused,
    until,
)

__all__ = ["Granting"]

ODD_NAMES = (
    "a",
    "A",
    "a:",
    ":a",
    "aa",
    "a:b:c",
    "a%3Ab",
    "*",
    "[a-z]?",
    "{slot}",
    "é",
    "锁",
    "'\"\\;--",
    "../../name",
    "n" * 200,
)
"""legal names that break careless code"""


class Granting(Contract):
    """The contract of `acquire`."""

    def test_a_lock_is_granted_to_one_holder(self) -> None:
        """And a refusal describes the lease that holds it."""
        store, before = self.make_store(), clock.now()
        owner = owner_record("videos.process", "id-1")
        holder = granted(store, owner=owner)
        assert_describes(refused(store, holder.name), holder, owner, before)

    def test_each_legal_name_is_a_lock_of_its_own(self) -> None:
        store, unique = self.make_store(), secrets.token_hex(4)
        holders = [granted(store, (unique + odd)[:200]) for odd in ODD_NAMES]
        for holder in holders:
            assert_held_by(holder)
            assert holder.release(), holder.name
            assert store.find(holder.name) is None, holder.name

    def test_asking_again_with_the_same_token_is_granted_again(self) -> None:
        """A client asks again after a lost reply, and its own lease must not refuse it. The lease
        lasts from then."""
        store = self.make_store()
        first = granted(store)
        for ttl in (4 * LONG_SECONDS, LONG_SECONDS):
            again = granted(store, first.name, first.token, ttl)
            assert again.grant.fence == first.grant.fence
            lasts_from_now(again, ttl)
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
            (holder,) = [each for each in answers if isinstance(each, Holder)]
            assert_held_by(holder)

    def test_holders_never_overlap(self) -> None:
        store, name, inside = self.make_store(), new_name(), threading.Lock()
        overlaps: list[Holder] = []
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
