"""A lease is extended and released by its token only."""

from __future__ import annotations

import time

from .._values import clock
from .._values.tokens import new_token
from ..stores.base import Extension
from .steps import (
    LONG_SECONDS,
    ROUNDING_SECONDS,
    TIMEOUT_SECONDS,
    Contract,
    eventually_granted,
    granted,
    in_threads,
    needs,
    new_name,
    until,
)

__all__ = ["Holding"]


class Holding(Contract):
    """The contract of `release`, `extend` and `extend_many`."""

    def test_release_ends_the_lease(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        grant = granted(store, name, token)
        assert store.release(name, token, grant.proof) is True
        assert store.get(name) is None
        granted(store, name)

    def test_release_needs_the_token(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        granted(store, name, token)
        assert store.release(name, new_token()) is False
        held = store.get(name)
        assert held is not None
        assert held.token == token

    def test_the_token_alone_is_enough_to_release_and_extend(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        granted(store, name, token)
        assert store.extend(name, token, LONG_SECONDS) is True
        assert store.release(name, token) is True
        assert store.get(name) is None

    def test_release_a_second_time_is_false(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        grant = granted(store, name, token)
        assert store.release(name, token, grant.proof) is True
        assert store.release(name, token, grant.proof) is False

    def test_release_of_a_lock_that_is_not_held_is_false(self) -> None:
        store = self.make_store()
        assert store.release(new_name(), new_token()) is False

    def test_a_late_release_leaves_the_next_holder_alone(self) -> None:
        store, name, late, token = self.make_store(), new_name(), new_token(), new_token()
        grant = granted(store, name, late, ttl=0.05)
        eventually_granted(store, name, token)
        assert store.release(name, late, grant.proof) is False
        held = store.get(name)
        assert held is not None
        assert held.token == token

    def test_of_many_releases_at_once_one_returns_true(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        needs(store.atomic_release, "releases in one step")
        grant = granted(store, name, token)
        answers: list[bool] = []
        in_threads(8, lambda: answers.append(store.release(name, token, grant.proof)))
        assert sorted(answers) == [False] * 7 + [True]

    def test_extend_makes_the_lease_last_from_now(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        grant = granted(store, name, token, ttl=LONG_SECONDS)
        for ttl in (4 * LONG_SECONDS, LONG_SECONDS):
            assert store.extend(name, token, ttl, grant.proof) is True

            def lasts_from_now(ttl: float = ttl) -> bool:
                held = store.get(name)
                assert held is not None
                assert held.ttl is not None
                assert held.token == token
                return ttl - TIMEOUT_SECONDS < held.ttl <= ttl + ROUNDING_SECONDS

            until(lasts_from_now)  # What a store shows may be a moment behind.

    def test_an_extended_lease_outlives_its_first_ttl(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        before = clock.now()
        grant = granted(store, name, token, ttl=2.0)
        assert store.extend(name, token, LONG_SECONDS, grant.proof) is True
        while clock.now() < before + 2.0 + ROUNDING_SECONDS:
            held = store.get(name)
            assert held is not None
            assert held.token == token
            time.sleep(0.1)

    def test_extend_needs_the_token(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        granted(store, name, token, ttl=LONG_SECONDS)
        assert store.extend(name, new_token(), 10 * LONG_SECONDS) is False
        held = store.get(name)
        assert held is not None
        assert held.ttl is not None
        assert held.ttl <= LONG_SECONDS + ROUNDING_SECONDS
        assert held.token == token

    def test_extend_does_not_bring_a_lease_back(self) -> None:
        store, name, token = self.make_store(), new_name(), new_token()
        grant = granted(store, name, token, ttl=0.05)
        until(lambda: store.get(name) is None)
        assert store.extend(name, token, LONG_SECONDS, grant.proof) is False
        assert store.get(name) is None

    def test_a_late_extend_leaves_the_next_holder_alone(self) -> None:
        store, name, late, token = self.make_store(), new_name(), new_token(), new_token()
        grant = granted(store, name, late, ttl=0.05)
        eventually_granted(store, name, token)
        assert store.extend(name, late, 10 * LONG_SECONDS, grant.proof) is False
        held = store.get(name)
        assert held is not None
        assert held.token == token
        assert held.ttl is not None
        assert held.ttl <= LONG_SECONDS + ROUNDING_SECONDS

    def test_a_batch_is_extended_each_on_its_own(self) -> None:
        store = self.make_store()
        batch: list[Extension] = []
        for number in range(12):
            name, token = new_name(), new_token()
            grant = granted(store, name, token)
            if number % 3 == 0:
                assert store.release(name, token, grant.proof)
            batch.append(Extension(name, token, 4 * LONG_SECONDS, grant.proof))
        assert store.extend_many(batch) == [number % 3 != 0 for number in range(12)]
        assert store.extend_many([]) == []
