"""Histories with waiters that are overtaken, left outside, late or not served."""

from __future__ import annotations

import pytest

from tests.chaos.bounds import IDLE_SECONDS, LATE_SECONDS, OUTSIDE_SECONDS
from tests.chaos.written_history import A, B, C, WrittenHistory


class TestQueue:
    def overtake(self, written: WrittenHistory) -> None:
        """C holds, A waits, B comes later, and is granted the lock before A."""
        written.ask(0.5, C)
        written.grant(0.6, C, 1)
        written.ask(1, A, wait=9.0)
        written.see(1.1, C, A)
        written.ask(1.2, B, wait=9.0)
        written.see(1.3, C, A, B)
        written.release(1.4, C)
        written.grant(1.41, B, 2)
        written.see(1.45, B, A)
        written.release(1.5, B)
        written.grant(1.51, A, 3)
        written.release(1.6, A)

    def test_overtaken(self, written: WrittenHistory) -> None:
        self.overtake(written)
        assert written.rules() == {"overtaken"}

    @pytest.mark.parametrize("fault", ["stopped", "cut", "redis stopped"])
    def test_overtaken_when_it_could_not_hear(self, written: WrittenHistory, fault: str) -> None:
        self.overtake(written)
        written.fault(fault, 1.35, 1.38, "0.1" if fault != "redis stopped" else "")
        assert written.rules() == set()

    def test_overtaken_while_another_process_was_stopped(self, written: WrittenHistory) -> None:
        self.overtake(written)
        written.fault("stopped", 1.35, 1.38, "1.1")
        assert written.rules() == {"overtaken"}

    def test_served_in_order_though_the_calls_return_in_another(
        self, written: WrittenHistory
    ) -> None:
        written.ask(0.5, C)
        written.grant(0.6, C, 1)
        written.ask(1, A, wait=9.0)
        written.ask(1.2, B, wait=9.0)
        written.see(1.3, C, A, B)
        written.release(1.4, C)
        written.grant(1.5, B, 3, end=9)
        written.release(1.6, B)
        written.grant(1.7, A, 2, end=1.75)
        written.tell(1.8, "lost", A)
        assert written.rules() == set()

    def lose_place(self, written: WrittenHistory) -> None:
        written.ask(1, A, wait=9.0)
        written.ask(1, B, wait=9.0)
        written.see(1.1, "", A, B)
        written.see(1.3, "", B, A)
        written.grant(1.4, B, 2)
        written.release(1.5, B)
        written.grant(1.6, A, 3)
        written.release(1.7, A)

    def test_behind_whom_it_was_in_front_of(self, written: WrittenHistory) -> None:
        self.lose_place(written)
        assert written.rules() == {"position lost"}

    def test_a_cut_is_no_reason_to_lose_a_position(self, written: WrittenHistory) -> None:
        self.lose_place(written)
        written.fault("cut", 1.15, 1.16, "0.1")
        assert written.rules() == {"position lost"}

    def test_a_stopped_waiter_may_lose_its_position(self, written: WrittenHistory) -> None:
        self.lose_place(written)
        written.fault("stopped", 1.15, 1.25, "0.1")
        assert written.rules() == set()

    def test_one_that_slept_through_its_lease_may_lose_its_position(
        self, written: WrittenHistory
    ) -> None:
        self.lose_place(written)
        written.see(1.2, A, B)
        assert written.rules() == set()

    def wait_outside(self, written: WrittenHistory) -> None:
        written.ask(0, C)
        written.grant(0.1, C, 1, end=30)
        written.ask(1, A, wait=None)
        written.see_often(0, 3 + OUTSIDE_SECONDS, C)
        written.release(4 + OUTSIDE_SECONDS, C)
        written.grant(4.1 + OUTSIDE_SECONDS, A, 2, end=40)
        written.release(4.2 + OUTSIDE_SECONDS, A)

    def test_a_waiter_that_is_not_in_the_queue(self, written: WrittenHistory) -> None:
        self.wait_outside(written)
        assert written.rules() == {"outside of the queue"}

    def test_a_waiter_that_had_to_listen_anew(self, written: WrittenHistory) -> None:
        self.wait_outside(written)
        written.fault("cut", 2, 2.1, "0.1")
        assert written.rules() == set()


class TestWaiting:
    @pytest.mark.parametrize("end", ["refused", "granted", ""])
    def test_a_call_that_returns_long_after_its_deadline(
        self, written: WrittenHistory, end: str
    ) -> None:
        written.ask(1, A, wait=2.0)
        at = 3.1 + LATE_SECONDS
        if end == "granted":
            written.grant(at, A, 1)
            written.release(at + 0.1, A)
        elif end:
            written.tell(at, "refused", A)
        written.see(at + 1)
        assert written.rules() == {"late"}

    def test_a_call_that_was_stopped_meanwhile(self, written: WrittenHistory) -> None:
        written.ask(1, A, wait=2.0)
        written.fault("stopped", 2, 5, "0.1")
        written.tell(3.1 + LATE_SECONDS, "refused", A)
        assert written.rules() == set()

    def test_another_process_that_was_stopped_meanwhile(self, written: WrittenHistory) -> None:
        written.ask(1, A, wait=2.0)
        written.fault("stopped", 2, 5, "1.1")
        written.tell(3.1 + LATE_SECONDS, "refused", A)
        assert written.rules() == {"late"}

    def test_one_who_waits_for_ever_and_is_not_served(self, written: WrittenHistory) -> None:
        written.ask(1, A, wait=None)
        written.see(1.5, C, A)
        assert written.rules() == {"never served"}

    def test_one_who_waits_for_ever_and_is_killed(self, written: WrittenHistory) -> None:
        written.ask(1, A, wait=None)
        written.fault("killed", 2, 2.1, "0.1")
        assert written.rules() == set()

    def leave_idle(self, written: WrittenHistory) -> None:
        written.ask(1, A, wait=30.0)
        written.see_often(2, 2.3 + IDLE_SECONDS, "", A)
        written.grant(2.5 + IDLE_SECONDS, A, 1)
        written.release(2.6 + IDLE_SECONDS, A)

    def test_a_lock_that_is_free_while_somebody_waits(self, written: WrittenHistory) -> None:
        self.leave_idle(written)
        assert written.rules() == {"idle"}

    def test_a_lock_that_is_free_while_its_waiter_is_stopped(self, written: WrittenHistory) -> None:
        self.leave_idle(written)
        written.fault("stopped", 2.5, 4, "0.1")
        assert written.rules() == set()

    def test_a_lock_that_is_free_before_its_waiter_can_know(self, written: WrittenHistory) -> None:
        """The last lease was made shorter, which tells nobody, and ran out."""
        written.ask(0.1, B)
        written.grant(0.2, B, 0)
        written.hold(B, 1.2)
        written.tell(1.4, "extending", B, ttl=0.3)
        written.tell(1.5, "extended", B, said=True)
        written.tell(1.9, "lost", B)
        self.leave_idle(written)
        assert written.rules() == set()
