"""For how long a member that was late is not waited for."""

from __future__ import annotations

from django_tasklock.stores.quorum.lateness import LONGEST_SECONDS, Lateness


def test_a_member_that_was_late_once_is_soon_waited_for_again() -> None:
    lateness = Lateness()
    assert not lateness.lasts(100.0)
    lateness.begin(100.0)
    assert lateness.lasts(100.005)
    assert not lateness.lasts(100.02)


def test_one_that_always_is_gets_a_chance_in_a_while() -> None:
    lateness, moment, waited = Lateness(), 100.0, 0
    while moment < 200.0:
        if not lateness.lasts(moment):
            waited += 1
            lateness.begin(moment)
        moment += 0.001
    assert waited < 110
    assert lateness.lasts(moment + LONGEST_SECONDS / 2)


def test_an_answer_in_time_ends_it() -> None:
    lateness = Lateness()
    lateness.begin(100.0)
    lateness.begin(100.0)
    lateness.end()
    assert not lateness.lasts(100.0)
    lateness.begin(100.0)
    assert not lateness.lasts(100.02)
