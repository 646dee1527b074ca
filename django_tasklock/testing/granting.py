"""Locks are granted to one holder, for a time."""

from __future__ import annotations

import secrets
import threading
import time

from .._values import clock
from .._values.owner import owner_record
from ..stores.base import BaseStore
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
    needs,
    new_name,
    refused,
    shown,
    until,
)

__all__ = ["Granting"]

ODD_NAMES = (
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

    def test_different_names_are_different_locks(self) -> None:
        store, prefix = self.make_store(), new_name()
        for end in ("a", "A", "a:", ":a", "aa"):
            granted(store, prefix + end)

    def test_every_legal_name_can_be_locked(self) -> None:
        store, unique = self.make_store(), secrets.token_hex(4)
        for odd in ODD_NAMES:
            name = (unique + odd)[:200]
            holder = granted(store, name)
            assert_held_by(holder)
            assert holder.release(), name
            assert store.get(name) is None, name

    def test_asking_again_with_the_same_token_is_granted_again(self) -> None:
        """A client asks again after a lost reply, and its own lease must not refuse it."""
        store = self.make_store()
        first = granted(store)
        again = granted(store, first.name, first.token)
        if store.supports_fence:
            assert again.grant.fence is not None
            assert first.grant.fence is not None
            assert again.grant.fence >= first.grant.fence
        assert refused(store, first.name).token == first.token
        assert again.release()
        assert store.get(first.name) is None

    def test_asking_again_makes_the_lease_last_from_then(self) -> None:
        store = self.make_store()
        first = granted(store)
        for ttl in (4 * LONG_SECONDS, LONG_SECONDS):
            lasts_from_now(granted(store, first.name, first.token, ttl), ttl)

    def test_a_lease_lasts_for_its_ttl(self) -> None:
        """Never for less, or two would hold the lock; longer in stores that count whole seconds."""
        store = self.make_store()
        leases = []
        for ttl in (0.05, 0.4, 1.0, 1.3):
            before = clock.now()
            leases.append((granted(store, ttl=ttl).name, ttl, before))
        for name, ttl, before in leases:
            eventually_granted(store, name)
            lasted = clock.now() - before
            assert lasted >= ttl, f"a lease of {ttl} s was over after {lasted:.3f} s"

    def test_a_lock_is_not_held_long_after_its_lease(self) -> None:
        store = self.make_store()
        holder = granted(store, ttl=0.3)
        deadline = clock.now() + 0.3 + ROUNDING_SECONDS
        while True:
            looked = clock.now()
            if store.get(holder.name) is None:
                break
            assert looked < deadline
            time.sleep(0.02)

    def test_a_millisecond_is_a_ttl(self) -> None:
        store = self.make_store()
        holder = granted(store, ttl=0.001)
        until(lambda: store.get(holder.name) is None)
        granted(store, holder.name)

    def test_of_many_calls_at_once_one_is_granted(self) -> None:
        needs(self.excludes, "excludes callers of the same moment")
        store = self.make_store()
        for _ in range(5):
            _ask_at_once(store, new_name())

    def test_holders_never_overlap(self) -> None:
        needs(self.excludes, "excludes callers of the same moment")
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
        if store.supports_fence:
            assert fences == sorted(set(fences), key=lambda fence: fence or 0)

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
        if store.supports_fence:
            numbers = [fence for fence in fences if isinstance(fence, int)]
            assert len(numbers) == 4
            assert numbers == sorted(set(numbers))
        else:
            assert fences == [None] * 4


def _ask_at_once(store: BaseStore, name: str) -> None:
    tokens: list[str] = []

    def ask() -> None:
        holder = asked(store, name)
        if isinstance(holder, Holder):
            tokens.append(holder.token)

    in_threads(8, ask)
    assert tokens == [shown(store, name).token]
