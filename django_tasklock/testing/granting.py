"""Locks are granted to one holder, for a time."""

from __future__ import annotations

import secrets
import threading
import time

from .._values import clock
from .._values.owner import Owner
from .._values.owner_record import owner_record
from .._values.tokens import new_token
from ..stores.base import Grant, Refusal
from .steps import (
    LONG_SECONDS,
    ROUNDING_SECONDS,
    TIMEOUT_SECONDS,
    Contract,
    assert_describes,
    eventually_granted,
    granted,
    in_threads,
    needs,
    new_name,
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
        store, name = self.make_store(), new_name()
        token = new_token()
        granted(store, name, token)
        refusal = store.acquire(name, new_token(), LONG_SECONDS, owner_record())
        assert isinstance(refusal, Refusal)
        assert refusal.holder.token == token

    def test_a_lease_outlives_the_connections_that_are_idle(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        grant = granted(store, name, token)
        store.close_idle()
        refusal = store.acquire(name, new_token(), LONG_SECONDS, owner_record())
        assert isinstance(refusal, Refusal)
        assert refusal.holder.token == token
        store.close_idle()
        assert store.release(name, token, grant.proof)

    def test_a_refusal_describes_the_lease_that_holds_the_lock(self) -> None:
        store, name = self.make_store(), new_name()
        owner = owner_record("videos.process", "id-1")
        before = clock.now()
        assert isinstance(store.acquire(name, "t" * 22, LONG_SECONDS, owner), Grant)
        refusal = store.acquire(name, new_token(), LONG_SECONDS, owner_record())
        assert isinstance(refusal, Refusal)
        assert_describes(refusal.holder, store, name, "t" * 22, Owner.from_record(owner), before)

    def test_different_names_are_different_locks(self) -> None:
        store, prefix = self.make_store(), new_name()
        for end in ("a", "A", "a:", ":a", "aa"):
            granted(store, prefix + end)

    def test_every_legal_name_can_be_locked(self) -> None:
        store, unique = self.make_store(), secrets.token_hex(4)
        for odd in ODD_NAMES:
            name = (unique + odd)[:200]
            token = new_token()
            grant = granted(store, name, token)
            held = store.get(name)
            assert held is not None, name
            assert (held.name, held.token) == (name, token)
            assert store.release(name, token, grant.proof), name
            assert store.get(name) is None, name

    def test_asking_again_with_the_same_token_is_granted_again(self) -> None:
        """A client asks again after a lost reply, and its own lease must not refuse it."""
        store, name, token = self.make_store(), new_name(), new_token()
        first = granted(store, name, token)
        again = granted(store, name, token)
        if store.supports_fence:
            assert again.fence is not None
            assert first.fence is not None
            assert again.fence >= first.fence
        assert isinstance(store.acquire(name, new_token(), LONG_SECONDS, owner_record()), Refusal)
        assert store.release(name, token, again.proof)
        assert store.get(name) is None

    def test_asking_again_makes_the_lease_last_from_then(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        for ttl in (LONG_SECONDS, 4 * LONG_SECONDS, LONG_SECONDS):
            granted(store, name, token, ttl)

            def lasts_from_now(ttl: float = ttl) -> bool:
                held = store.get(name)
                assert held is not None
                assert held.ttl is not None
                return ttl - TIMEOUT_SECONDS < held.ttl <= ttl + ROUNDING_SECONDS

            # Of several servers, the slowest one may answer with what it had before.
            until(lasts_from_now)

    def test_a_lease_lasts_for_its_ttl(self) -> None:
        """Never for less, or two would hold the lock; longer in stores that count whole seconds."""
        store = self.make_store()
        leases = []
        for ttl in (0.05, 0.4, 1.0, 1.3):
            name, before = new_name(), clock.now()
            granted(store, name, ttl=ttl)
            leases.append((name, ttl, before))
        for name, ttl, before in leases:
            until(
                lambda name=name: isinstance(  # type: ignore[misc]
                    store.acquire(name, new_token(), LONG_SECONDS, owner_record()), Grant
                )
            )
            lasted = clock.now() - before
            assert lasted >= ttl, f"a lease of {ttl} s was over after {lasted:.3f} s"

    def test_a_lock_is_not_held_long_after_its_lease(self) -> None:
        store, name = self.make_store(), new_name()
        granted(store, name, ttl=0.3)
        deadline = clock.now() + 0.3 + ROUNDING_SECONDS
        while True:
            asked = clock.now()
            if store.get(name) is None:
                break
            assert asked < deadline
            time.sleep(0.02)

    def test_a_millisecond_is_a_ttl(self) -> None:
        store, name = self.make_store(), new_name()
        granted(store, name, ttl=0.001)
        until(lambda: store.get(name) is None)
        granted(store, name)

    def test_of_many_calls_at_once_one_is_granted(self) -> None:
        needs(self.excludes, "excludes callers of the same moment")
        store = self.make_store()
        for _ in range(5):
            name, together = new_name(), threading.Barrier(8)
            grants: list[str] = []

            def ask(
                name: str = name,
                together: threading.Barrier = together,
                grants: list[str] = grants,
            ) -> None:
                token = new_token()
                together.wait(TIMEOUT_SECONDS)
                if isinstance(store.acquire(name, token, LONG_SECONDS, owner_record()), Grant):
                    grants.append(token)

            in_threads(8, ask)
            held = store.get(name)
            assert held is not None
            assert grants == [held.token]

    def test_holders_never_overlap(self) -> None:
        needs(self.excludes, "excludes callers of the same moment")
        store, name, inside = self.make_store(), new_name(), threading.Lock()
        overlaps: list[str] = []
        fences: list[int | None] = []

        def work() -> None:
            for _ in range(5):
                token = new_token()
                grant = eventually_granted(store, name, token)
                if inside.acquire(blocking=False):
                    fences.append(grant.fence)
                    time.sleep(0.001)
                    inside.release()
                else:
                    overlaps.append(token)
                assert store.release(name, token, grant.proof)

        in_threads(4, work)
        assert overlaps == []
        assert len(fences) == 20
        if store.supports_fence:
            assert fences == sorted(set(fences), key=lambda fence: fence or 0)

    def test_fences_grow_with_every_lease(self) -> None:
        store, name = self.make_store(), new_name()
        fences = []
        for turn in range(4):
            token = new_token()
            grant = eventually_granted(store, name, token, ttl=0.05 if turn == 1 else LONG_SECONDS)
            fences.append(grant.fence)
            if turn == 0:
                store.release(name, token, grant.proof)
            elif turn == 2:
                store.clear(name)
            following = store.next_fence()
            assert following is None or following > (grant.fence or 0)
        if store.supports_fence:
            numbers = [fence for fence in fences if isinstance(fence, int)]
            assert len(numbers) == 4
            assert numbers == sorted(set(numbers))
        else:
            assert fences == [None] * 4
