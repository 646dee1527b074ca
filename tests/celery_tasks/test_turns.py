"""When a message that was refused comes back, from what is known of its lock."""

from __future__ import annotations

import pytest

from django_tasklock.celery.turns import next_turn


def test_the_first_message_comes_when_the_holder_is_expected_to_end() -> None:
    assert next_turn(last=0.0, remaining=3.0, step=3.0, waited=0.0) == (3.0, 3.0)


def test_it_does_not_come_at_once() -> None:
    assert next_turn(last=0.0, remaining=0.01, step=0.1, waited=0.0) == (0.5, 0.5)


def test_the_next_one_comes_a_step_after_the_last_turn() -> None:
    assert next_turn(last=3.0, remaining=1.0, step=1.5, waited=0.0) == (4.5, 4.5)


def test_one_that_has_waited_for_long_asks_less_often_and_leaves_its_turn_to_others() -> None:
    assert next_turn(last=0.0, remaining=0.1, step=0.1, waited=40.0) == (5.0, 0.5)


@pytest.mark.parametrize("waited", [0.0, 3600.0])
def test_a_lock_that_was_held_for_an_hour_is_asked_for_every_fifteen_seconds(waited: float) -> None:
    delay, _turn = next_turn(last=0.0, remaining=3600.0, step=3600.0, waited=waited)
    assert delay == 15.0


def test_without_a_turn_in_the_next_fifteen_seconds_it_asks_again_then() -> None:
    assert next_turn(last=14.0, remaining=2.0, step=2.0, waited=0.0) == (15.0, None)


def test_a_follow_up_asks_again_sooner() -> None:
    assert next_turn(last=0.0, remaining=60.0, step=60.0, waited=60.0, longest=2.0) == (2.0, 2.0)
