"""When a message comes: the arithmetic of a burst (``debounce``), of a follow-up
(``on_conflict="coalesce"``), and of the turns of those that wait for one lock."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_tasklock.celery.debounce import NANOSECONDS, Burst
from django_tasklock.celery.one_run import FollowUp
from django_tasklock.celery.requeue import Turns, delay_until, next_turn


def burst(last: float, first: float = 0, task_id: str = "a", kept: float = 0) -> Burst:
    """A burst with these moments, in seconds."""
    last, first, kept = (int(moment * NANOSECONDS) for moment in (last, first, kept))
    return Burst(last, first, task_id, kept)


@pytest.mark.parametrize(("before", "moment", "longest", "after", "delay"), [
    pytest.param(Burst(), 100, None, burst(100, 100, "b"), 5, id="the first call"),
    pytest.param(burst(100, 100), 102, None, burst(102, 100, "b"), 5, id="a later one"),
    pytest.param(burst(109, 100), 110, 12, burst(110, 100, "b"), 2, id="not beyond debounce_max"),
    pytest.param(burst(111, 100), 112, 12, burst(112, 112, "b", 111), 5, id="the next burst"),
    pytest.param(burst(120, 112, kept=111), 130, 12, burst(130, 112, "b", 111), 0,
                 id="another is kept: at once"),
    pytest.param(burst(100), 102, 12, burst(102, 102, "b"), 5, id="the last one has left"),
])  # fmt: skip
def test_a_call_joins_a_burst(
    before: Burst, moment: int, longest: float | None, after: Burst, delay: float
) -> None:
    # Given a burst of calls, and a later call with debounce=5
    joined = before.joined_by("b", moment * NANOSECONDS, longest)
    # I expect the call to be its last one, or the first one of the next burst
    assert joined == after
    # And to run after the debounce, or when the burst ends
    assert joined.delay(moment * NANOSECONDS, 5, longest) == delay
    # And to replace all others but the one that is kept
    assert joined.replaces(99 * NANOSECONDS)
    assert not any(map(joined.replaces, [joined.last, joined.kept]))
    # And to stay the last one, whoever notes an earlier one after it
    assert joined.joined_by("a", joined.last - 1, longest) == joined


@pytest.mark.parametrize(("before", "moment", "after"), [
    pytest.param(burst(110, 100), 110, burst(110, 0, "b"), id="the last one"),
    pytest.param(burst(110, 100), 120, burst(120, 0, "b"), id="the note of the last one is lost"),
    pytest.param(burst(110, 100), 105, burst(110, 100), id="a call has come in between"),
    pytest.param(burst(110, 100, kept=99), 99, burst(110, 100), id="the one that was kept"),
])  # fmt: skip
def test_one_of_a_burst_leaves_it(before: Burst, moment: int, after: Burst) -> None:
    assert before.left_by("b", moment * NANOSECONDS) == after


@pytest.mark.parametrize("text", [
    None, "", "null", "[]", "[1,2,3]", '["a",1,"b",0]', "[" * 5000, f'[1{"0" * 400},1,"b",0]',
    '[1,-1,"b",0]', '[NaN,"b"]', '[1e999,"b"]', '[-1,"b"]', '["a","b"]',
    f'[1{"0" * 400},"b"]',
], ids=lambda text: str(text)[:20])  # fmt: skip
@pytest.mark.parametrize("kind", [Burst, FollowUp])
def test_a_note_that_nobody_can_read_replaces_nothing(kind: Any, text: str | None) -> None:
    assert kind.read(text)[0] == 0


A, B = FollowUp(10.0, "a"), FollowUp(20.0, "b")


@pytest.mark.parametrize(("named", "refused", "then"), [
    pytest.param(None, A, A, id="the first one that is refused"),
    pytest.param(A, B, B, id="a later one"),
    pytest.param(B, A, None, id="an earlier one"),
    pytest.param(B, B, B, id="it waits again"),
    pytest.param(FollowUp(10.0, "c"), A, None, id="one of two that were sent at once"),
])  # fmt: skip
def test_the_follow_up_is_the_call_that_was_sent_last(
    named: FollowUp | None, refused: FollowUp, then: FollowUp | None
) -> None:
    assert refused.over(named and json.dumps(named)) == (then and json.dumps(then))
    assert FollowUp.read(json.dumps([refused.moment, refused.task_id])) == refused


@pytest.mark.parametrize(("ours", "moment"), [
    ({"sent": 5.0}, 5.0), ({"sent": 9.0, "called": 5.0}, 5.0), ({}, 0.0), ({"sent": "x"}, 0.0),
    ({"sent": 10**400}, 0.0),
])  # fmt: skip
def test_a_retry_is_as_old_as_its_call(ours: dict[str, Any], moment: float) -> None:
    assert FollowUp.of("a", ours) == (moment, "a")


# ------------------------------------------------------------------------------ turns


@pytest.mark.parametrize(
    ("last", "held", "need", "options", "seconds"),
    [
        pytest.param(0.0, 2.4, 2.4, {}, 3.0, id="when the holder is to end"),
        pytest.param(0.0, 0.1, 2.4, {}, 3.0, id="when it has had what a holder needs"),
        pytest.param(0.0, 0.01, 0.2, {}, 0.5, id="not at once"),
        pytest.param(-9.0, 2.4, 2.4, {}, 3.0, id="the last turn is past"),
        pytest.param(3.0, 0.1, 1.2, {}, 4.5, id="a step after the last turn"),
        pytest.param(1.0, 0.01, 0.01, {}, 1.05, id="by the shortest step"),
        pytest.param(3.0, 1.2, 1.2, {"slots": 5}, 3.3, id="several permits: shorter steps"),
        pytest.param(0.0, 6.0, 6.0, {"ends_in": 4.0}, 6.0, id="when it is cool, and has run"),
        pytest.param(0.0, 0.0, 0.2, {"ends_in": 4.0}, 4.0, id="when the operator's hold ends"),
        pytest.param(4.0, 0.0, 0.2, {"ends_in": 4.0}, 4.2, id="of a hold, after the one before"),
        pytest.param(0.0, 3600.0, 3600.0, {}, 15.0, id="after a long hold the last one there is"),
        pytest.param(14.0, 2.0, 2.0, {}, None, id="none: it would be too late"),
        pytest.param(16.0, 2.0, 2.0, {}, 2.5, id="a last turn that nobody gives counts as none"),
        pytest.param(0.0, 60.0, 60.0, {"longest": 2.0}, 2.0, id="a follow-up asks sooner"),
    ],
)
def test_the_next_turn(
    last: float, held: float, need: float, options: dict[str, Any], seconds: float | None
) -> None:
    # Given a last turn from now, a lock that has been held for so long, and what a holder needs
    turn = next_turn(last, held, need, **options)
    # I expect the next message to come so many seconds from now, or to get no turn
    assert turn == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("need", "since", "held", "slots", "seconds"),
    [
        pytest.param(0.2, 0.0, 0.1, 1, 0.2, id="the first holder is met soon"),
        pytest.param(0.2, 0.0, 0.7, 1, 0.7, id="it needs as long as it has had the lock"),
        pytest.param(0.7, 0.0, 0.1, 1, 0.7, id="what it needed when it was met later"),
        pytest.param(0.2, 0.03, 0.01, 1, 0.03, id="the next one: the first had ended by then"),
        pytest.param(0.2, 0.03, 0.01, 2, 0.2, id="another permit: nobody has ended"),
        pytest.param(0.2, 9.0, 0.01, 1, 0.2, id="a later one, after nobody knows how many"),
        pytest.param(1.0, 9.0, 0.01, 1, 0.5, id="the next may need less than a long run"),
        pytest.param(1.0, 9.0, 0.8, 1, 0.8, id="it does not"),
        pytest.param(0.2, -9.0, 0.1, 1, 0.2, id="a key of other code, or of an earlier clock"),
        pytest.param(float("nan"), 9.0, 0.1, 1, 0.1, id="a note of nonsense"),
    ],
)
def test_what_a_holder_needs(
    need: float, since: float, held: float, slots: int, seconds: float
) -> None:
    # Given what the note says, when its holder had the lock since 1000.0
    before = Turns(0.0, 1000.0, need)
    # I expect it to know this, when a holder is met that has had the lock since then
    assert before.needed(1000.0 + since, held, slots) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("turn", "waited", "longest", "seconds"),
    [
        pytest.param(3.0, 8.0, 15.0, 3.0, id="at its turn"),
        pytest.param(3.0, 40.0, 15.0, 5.0, id="less often, after a long wait"),
        pytest.param(3.0, 3000.0, 15.0, 15.0, id="each fifteen seconds"),
        pytest.param(None, 0.0, 15.0, 12.0, id="without a turn about then"),
    ],
)
def test_a_message_comes_at_its_turn(
    turn: float | None, waited: float, longest: float, seconds: float
) -> None:
    assert delay_until(turn, waited, longest, share=0.8) == seconds
