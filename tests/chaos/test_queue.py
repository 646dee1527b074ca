"""Histories with waiters that are overtaken, left outside, late or not served."""

from __future__ import annotations

import pytest

from tests.chaos.bounds import IDLE, LATE, OUTSIDE
from tests.chaos.told import A, B, C, Told


class TestQueue:
    def overtake(self, told: Told) -> None:
        """C holds, A waits, B comes later, and is granted the lock before A."""
        told.ask(0.5, C)
        told.grant(0.6, C, 1)
        told.ask(1, A, wait=9.0)
        told.see(1.1, C, A)
        told.ask(1.2, B, wait=9.0)
        told.see(1.3, C, A, B)
        told.release(1.4, C)
        told.grant(1.41, B, 2)
        told.see(1.45, B, A)
        told.release(1.5, B)
        told.grant(1.51, A, 3)
        told.release(1.6, A)

    def test_overtaken(self, told: Told) -> None:
        self.overtake(told)
        assert told.rules() == {"overtaken"}

    @pytest.mark.parametrize("fault", ["stopped", "cut", "redis stopped"])
    def test_overtaken_when_it_could_not_hear(self, told: Told, fault: str) -> None:
        self.overtake(told)
        told.fault(fault, 1.35, 1.38, "0.1" if fault != "redis stopped" else "")
        assert told.rules() == set()

    def test_overtaken_while_another_process_was_stopped(self, told: Told) -> None:
        self.overtake(told)
        told.fault("stopped", 1.35, 1.38, "1.1")
        assert told.rules() == {"overtaken"}

    def test_served_in_order_though_the_calls_return_in_another(self, told: Told) -> None:
        told.ask(0.5, C)
        told.grant(0.6, C, 1)
        told.ask(1, A, wait=9.0)
        told.ask(1.2, B, wait=9.0)
        told.see(1.3, C, A, B)
        told.release(1.4, C)
        told.grant(1.5, B, 3, end=9)
        told.release(1.6, B)
        told.grant(1.7, A, 2, end=1.75)
        told.tell(1.8, "lost", A)
        assert told.rules() == set()

    def lose_place(self, told: Told) -> None:
        told.ask(1, A, wait=9.0)
        told.ask(1, B, wait=9.0)
        told.see(1.1, "", A, B)
        told.see(1.3, "", B, A)
        told.grant(1.4, B, 2)
        told.release(1.5, B)
        told.grant(1.6, A, 3)
        told.release(1.7, A)

    def test_behind_whom_it_was_in_front_of(self, told: Told) -> None:
        self.lose_place(told)
        assert told.rules() == {"place lost"}

    def test_a_cut_is_no_reason_to_lose_a_place(self, told: Told) -> None:
        self.lose_place(told)
        told.fault("cut", 1.15, 1.16, "0.1")
        assert told.rules() == {"place lost"}

    def test_a_stopped_waiter_may_lose_its_place(self, told: Told) -> None:
        self.lose_place(told)
        told.fault("stopped", 1.15, 1.25, "0.1")
        assert told.rules() == set()

    def test_one_that_slept_through_its_lease_may_lose_its_place(self, told: Told) -> None:
        self.lose_place(told)
        told.see(1.2, A, B)
        assert told.rules() == set()

    def wait_outside(self, told: Told) -> None:
        told.ask(0, C)
        told.grant(0.1, C, 1, end=30)
        told.ask(1, A, wait=None)
        told.see_often(0, 3 + OUTSIDE, C)
        told.release(4 + OUTSIDE, C)
        told.grant(4.1 + OUTSIDE, A, 2, end=40)
        told.release(4.2 + OUTSIDE, A)

    def test_a_waiter_that_is_not_in_the_queue(self, told: Told) -> None:
        self.wait_outside(told)
        assert told.rules() == {"outside of the queue"}

    def test_a_waiter_that_had_to_listen_anew(self, told: Told) -> None:
        self.wait_outside(told)
        told.fault("cut", 2, 2.1, "0.1")
        assert told.rules() == set()


class TestWaiting:
    @pytest.mark.parametrize("end", ["refused", "granted", ""])
    def test_a_call_that_returns_long_after_its_deadline(self, told: Told, end: str) -> None:
        told.ask(1, A, wait=2.0)
        at = 3.1 + LATE
        if end == "granted":
            told.grant(at, A, 1)
            told.release(at + 0.1, A)
        elif end:
            told.tell(at, "refused", A)
        told.see(at + 1)
        assert told.rules() == {"late"}

    def test_a_call_that_was_stopped_meanwhile(self, told: Told) -> None:
        told.ask(1, A, wait=2.0)
        told.fault("stopped", 2, 5, "0.1")
        told.tell(3.1 + LATE, "refused", A)
        assert told.rules() == set()

    def test_another_process_that_was_stopped_meanwhile(self, told: Told) -> None:
        told.ask(1, A, wait=2.0)
        told.fault("stopped", 2, 5, "1.1")
        told.tell(3.1 + LATE, "refused", A)
        assert told.rules() == {"late"}

    def test_one_who_waits_for_ever_and_is_not_served(self, told: Told) -> None:
        told.ask(1, A, wait=None)
        told.see(1.5, C, A)
        assert told.rules() == {"never served"}

    def test_one_who_waits_for_ever_and_is_killed(self, told: Told) -> None:
        told.ask(1, A, wait=None)
        told.fault("killed", 2, 2.1, "0.1")
        assert told.rules() == set()

    def leave_idle(self, told: Told) -> None:
        told.ask(1, A, wait=30.0)
        told.see_often(2, 2.3 + IDLE, "", A)
        told.grant(2.5 + IDLE, A, 1)
        told.release(2.6 + IDLE, A)

    def test_a_lock_that_is_free_while_somebody_waits(self, told: Told) -> None:
        self.leave_idle(told)
        assert told.rules() == {"idle"}

    def test_a_lock_that_is_free_while_its_waiter_is_stopped(self, told: Told) -> None:
        self.leave_idle(told)
        told.fault("stopped", 2.5, 4, "0.1")
        assert told.rules() == set()
