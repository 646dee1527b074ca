"""Histories with two holders at once, or with fences that fall."""

from __future__ import annotations

from tests.chaos.told import A, B, C, Told


class TestHolders:
    def test_one_after_the_other(self, told: Told) -> None:
        told.ask(1, A)
        told.grant(1.1, A, 1)
        told.hold(A, 1.2, 1.3)
        told.release(1.4, A)
        told.ask(1.5, B)
        told.grant(1.6, B, 2)
        told.release(1.7, B)
        assert told.rules() == set()

    def test_two_at_once(self, told: Told) -> None:
        told.ask(1, A)
        told.grant(1.1, A, 1)
        told.ask(1.15, B)
        told.grant(1.2, B, 2)
        told.hold(B, 1.3)
        told.hold(A, 1.4)
        told.release(1.5, A)
        told.release(1.6, B)
        assert told.rules() == {"two holders"}

    def test_one_that_was_last_seen_to_hold_before_the_other_began(self, told: Told) -> None:
        """Its ttl ran out somewhere in between, which it notices late."""
        told.ask(1, A)
        told.grant(1.1, A, 1, end=3)
        told.hold(A, 2.9, end=3)
        told.ask(3, B, wait=5.0)
        told.grant(3.1, B, 2)
        told.tell(3.2, "lost", A)
        told.release(3.3, A, said=False)
        told.release(3.4, B)
        assert told.rules() == set()

    def test_a_killed_holder_ends_with_its_process(self, told: Told) -> None:
        told.ask(1, A)
        told.grant(1.1, A, 1)
        told.fault("killed", 1.2, 1.25, "0.1")
        told.ask(1.3, B)
        told.grant(1.4, B, 2)
        told.release(1.5, B)
        assert told.rules() == set()

    def test_a_holder_killed_after_another_one_began(self, told: Told) -> None:
        told.ask(1, A)
        told.grant(1.1, A, 1)
        told.ask(1.2, B)
        told.grant(1.3, B, 2)
        told.fault("killed", 1.4, 1.45, "0.1")
        told.release(1.5, B)
        assert told.rules() == {"two holders"}

    def test_a_stopped_holder_believes_until_its_own_end(self, told: Told) -> None:
        told.ask(1, A)
        told.grant(1.1, A, 1, end=2)
        told.fault("stopped", 1.2, 3, "0.1")
        told.ask(2.1, B)
        told.grant(2.2, B, 2)
        told.release(2.3, B)
        told.tell(3.1, "lost", A)
        told.release(3.2, A, said=False)
        assert told.rules() == set()

    def test_a_cleared_holder_does_not_count(self, told: Told) -> None:
        told.ask(1, A)
        told.grant(1.1, A, 1)
        told.clear(1.2, C, of=A, fence=1)
        told.ask(1.3, B)
        told.grant(1.4, B, 2)
        told.hold(A, 1.5)
        told.release(1.6, A, said=False)
        told.release(1.7, B)
        assert told.rules() == set()

    def test_a_clear_that_removed_nothing_explains_nothing(self, told: Told) -> None:
        told.ask(1, A)
        told.grant(1.1, A, 1)
        told.clear(1.2, C, of=A, fence=1, said=False)
        told.ask(1.3, B)
        told.grant(1.4, B, 2)
        told.hold(A, 1.5)
        told.release(1.6, B)
        told.release(1.7, A)
        assert told.rules() == {"two holders"}

    def test_a_clear_of_an_earlier_lease_of_the_call_explains_nothing(self, told: Told) -> None:
        """A waiter that slept through one lease is granted another one, with the same token."""
        told.clear(0.5, C, of=A, fence=1)
        told.ask(0.1, A, wait=5.0)
        told.grant(1.1, A, 2, token=f"token-{A}-1")
        told.ask(1.3, B)
        told.grant(1.4, B, 3)
        told.release(1.5, B)
        told.release(1.6, A)
        assert told.rules() == {"two holders"}


class TestFences:
    def test_a_fence_below_one_granted_before(self, told: Told) -> None:
        told.ask(1, A)
        told.grant(1.1, A, 7)
        told.release(1.2, A)
        told.ask(1.3, B)
        told.grant(1.4, B, 6)
        told.release(1.5, B)
        assert told.rules() == {"falling fences"}

    def test_calls_that_overlap_may_be_granted_in_either_order(self, told: Told) -> None:
        told.ask(1, A)
        told.ask(1, B, wait=2.0)
        told.grant(1.1, A, 7)
        told.release(1.2, A)
        told.grant(1.3, B, 6)
        told.release(1.4, B)
        assert told.rules() == set()

    def test_the_same_fence_twice(self, told: Told) -> None:
        told.ask(1, A)
        told.ask(1, B, wait=2.0)
        told.grant(1.1, A, 7)
        told.release(1.2, A)
        told.grant(1.3, B, 7)
        told.release(1.4, B)
        assert told.rules() == {"equal fences"}
