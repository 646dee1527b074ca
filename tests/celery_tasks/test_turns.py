"""When does the next message of a lock come?"""

from __future__ import annotations

from typing import Any

import pytest

from django_tasklock.celery.turns import delay_until, next_turn


@pytest.mark.parametrize(
    ("last", "held", "options", "seconds"),
    [
        pytest.param(0.0, 2.4, {}, 3.0, id="when the holder is to end"),
        pytest.param(0.0, 0.01, {}, 0.5, id="not at once"),
        pytest.param(-9.0, 2.4, {}, 3.0, id="the last turn is past"),
        pytest.param(3.0, 1.2, {}, 4.5, id="a step after the last turn"),
        pytest.param(1.0, 0.01, {}, 1.15, id="by the shortest step"),
        pytest.param(3.0, 1.2, {"slots": 5}, 3.3, id="several permits: shorter steps"),
        pytest.param(0.0, 2.0, {"cools_for": 4.0}, 6.0, id="when it is cool, and has run"),
        pytest.param(0.0, 3600.0, {}, 15.0, id="after a long hold the last turn that there is"),
        pytest.param(14.0, 2.0, {}, None, id="none: it would be too late"),
        pytest.param(16.0, 2.0, {}, 2.5, id="a last turn that nobody gives counts as none"),
        pytest.param(0.0, 60.0, {"longest": 2.0}, 2.0, id="a follow-up asks sooner"),
    ],
)
def test_the_next_turn(
    last: float, held: float, options: dict[str, Any], seconds: float | None
) -> None:
    # Given a last turn from now, and a lock that has been held for so long
    turn = next_turn(last, held, **options)
    # I expect the next message to come so many seconds from now, or to get no turn
    assert turn == (None if seconds is None else pytest.approx(seconds))


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
    assert delay_until(turn, waited, longest, chance=0.8) == seconds
