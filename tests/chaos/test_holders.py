"""Histories with two holders at once, or with fences that fall."""

from __future__ import annotations

from tests.chaos.written_history import A, B, C, WrittenHistory


class TestHolders:
    def test_one_after_the_other(self, written: WrittenHistory) -> None:
        written.ask(1, A)
        written.grant(1.1, A, 1)
        written.hold(A, 1.2, 1.3)
        written.release(1.4, A)
        written.ask(1.5, B)
        written.grant(1.6, B, 2)
        written.release(1.7, B)
        assert written.rules() == set()

    def test_two_at_once(self, written: WrittenHistory) -> None:
        written.ask(1, A)
        written.grant(1.1, A, 1)
        written.ask(1.15, B)
        written.grant(1.2, B, 2)
        written.hold(B, 1.3)
        written.hold(A, 1.4)
        written.release(1.5, A)
        written.release(1.6, B)
        assert written.rules() == {"two holders"}

    def test_one_that_was_last_seen_to_hold_before_the_other_began(
        self, written: WrittenHistory
    ) -> None:
        """Its ttl ran out somewhere in between, which it notices late."""
        written.ask(1, A)
        written.grant(1.1, A, 1, end=3)
        written.hold(A, 2.9, end=3)
        written.ask(3, B, wait=5.0)
        written.grant(3.1, B, 2)
        written.tell(3.2, "lost", A)
        written.release(3.3, A, said=False)
        written.release(3.4, B)
        assert written.rules() == set()

    def test_a_killed_holder_ends_with_its_process(self, written: WrittenHistory) -> None:
        written.ask(1, A)
        written.grant(1.1, A, 1)
        written.fault("killed", 1.2, 1.25, "0.1")
        written.ask(1.3, B)
        written.grant(1.4, B, 2)
        written.release(1.5, B)
        assert written.rules() == set()

    def test_a_holder_killed_after_another_one_began(self, written: WrittenHistory) -> None:
        written.ask(1, A)
        written.grant(1.1, A, 1)
        written.ask(1.2, B)
        written.grant(1.3, B, 2)
        written.fault("killed", 1.4, 1.45, "0.1")
        written.release(1.5, B)
        assert written.rules() == {"two holders"}

    def test_a_stopped_holder_believes_until_its_own_end(self, written: WrittenHistory) -> None:
        written.ask(1, A)
        written.grant(1.1, A, 1, end=2)
        written.fault("stopped", 1.2, 3, "0.1")
        written.ask(2.1, B)
        written.grant(2.2, B, 2)
        written.release(2.3, B)
        written.tell(3.1, "lost", A)
        written.release(3.2, A, said=False)
        assert written.rules() == set()

    def test_a_cleared_holder_does_not_count(self, written: WrittenHistory) -> None:
        written.ask(1, A)
        written.grant(1.1, A, 1)
        written.clear(1.2, C, of=A, fence=1)
        written.ask(1.3, B)
        written.grant(1.4, B, 2)
        written.hold(A, 1.5, end=11)
        written.release(1.6, A, said=False)
        written.release(1.7, B)
        assert written.rules() == set()

    def test_a_clear_that_removed_nothing_explains_nothing(self, written: WrittenHistory) -> None:
        written.ask(1, A)
        written.grant(1.1, A, 1)
        written.clear(1.2, C, of=A, fence=1, said=False)
        written.ask(1.3, B)
        written.grant(1.4, B, 2)
        written.hold(A, 1.5)
        written.release(1.6, B)
        written.release(1.7, A)
        assert written.rules() == {"two holders"}

    def test_a_clear_of_an_earlier_lease_of_the_call_explains_nothing(
        self, written: WrittenHistory
    ) -> None:
        """A waiter that slept through one lease is granted another one, with the same token."""
        written.clear(0.5, C, of=A, fence=1)
        written.ask(0.1, A, wait=5.0)
        written.grant(1.1, A, 2, token=f"token-{A}-1")
        written.ask(1.3, B)
        written.grant(1.4, B, 3)
        written.release(1.5, B)
        written.release(1.6, A)
        assert written.rules() == {"two holders"}


class TestFences:
    def test_a_fence_below_one_granted_before(self, written: WrittenHistory) -> None:
        written.ask(1, A)
        written.grant(1.1, A, 7)
        written.release(1.2, A)
        written.ask(1.3, B)
        written.grant(1.4, B, 6)
        written.release(1.5, B)
        assert written.rules() == {"falling fences"}

    def test_calls_that_overlap_may_be_granted_in_either_order(
        self, written: WrittenHistory
    ) -> None:
        written.ask(1, A)
        written.ask(1, B, wait=2.0)
        written.grant(1.1, A, 7)
        written.release(1.2, A)
        written.grant(1.3, B, 6)
        written.release(1.4, B)
        assert written.rules() == set()

    def test_the_same_fence_twice(self, written: WrittenHistory) -> None:
        written.ask(1, A)
        written.ask(1, B, wait=2.0)
        written.grant(1.1, A, 7)
        written.release(1.2, A)
        written.grant(1.3, B, 7)
        written.release(1.4, B)
        assert written.rules() == {"equal fences"}


class TestTheDead:
    def kill_and_give(self, written: WrittenHistory, *, given: float) -> None:
        written.ask(1, A, wait=20.0)
        written.see_often(1.1, given - 0.1, C, A)
        written.fault("killed", 2, 2.01, "0.1")
        written.see_often(given, given + 0.3, A)

    def test_a_lock_given_to_one_that_was_dead(self, written: WrittenHistory) -> None:
        self.kill_and_give(written, given=3.5)
        assert written.rules() == {"given to the dead"}

    def test_a_lock_given_to_one_that_died_a_moment_ago(self, written: WrittenHistory) -> None:
        self.kill_and_give(written, given=2.5)
        assert written.rules() == set()

    def test_nobody_knew_of_the_death(self, written: WrittenHistory) -> None:
        self.kill_and_give(written, given=3.5)
        written.fault("redis stopped", 1.9, 3.3)
        assert written.rules() == set()


class TestForgotten:
    """The server has lost its data: two may hold a lock, as long as the fences tell them apart."""

    def two(self, written: WrittenHistory, *, fence: int = 2) -> None:
        written.ask(1, A)
        written.grant(1.1, A, 1)
        written.hold(A, 1.2)
        written.ask(1.5, B)
        written.grant(1.6, B, fence)
        written.hold(B, 1.8)
        written.hold(A, 1.9)

    def test_a_lease_from_before(self, written: WrittenHistory) -> None:
        self.two(written)
        written.fault("emptied", 1.3, 1.4)
        written.release(2, A, said=False)
        written.release(2.1, B)
        assert written.rules() == set()

    def test_a_lease_whose_release_was_on_its_way(self, written: WrittenHistory) -> None:
        written.ask(1, A)
        written.grant(1.1, A, 1)
        written.tell(1.5, "releasing", A)
        written.fault("emptied", 1.6, 1.61)
        written.tell(1.7, "released", A, said=False)
        assert written.rules() == set()

    def test_two_leases_from_after(self, written: WrittenHistory) -> None:
        self.two(written)
        written.fault("emptied", 0.5, 0.6)
        written.release(2, A)
        written.release(2.1, B)
        assert written.rules() == {"two holders"}

    def test_the_next_lease_has_a_lower_fence(self, written: WrittenHistory) -> None:
        self.two(written, fence=0)
        written.fault("emptied", 1.3, 1.4)
        written.release(2, A, said=False)
        written.release(2.1, B)
        assert written.rules() == {"falling fences"}
