"""What a guarded row promises, in every state that three runs can bring it to."""

from __future__ import annotations

import pytest

from tests.model.rows import (
    LATE_CLAIM,
    LATE_RESULT,
    Guard,
    RowModel,
    RowState,
    Run,
    broken,
)
from tests.model.search import Explored, Violation, explore


class ClaimsWithoutTheFence(Guard):
    def may_claim(self, state: RowState, fence: int) -> bool:
        return state.status in ("uploaded", "processing")


class FinishesWithoutTheFence(Guard):
    def may_finish(self, state: RowState, fence: int) -> bool:
        return state.status == "processing"


class WorksAgain(Guard):
    """``done`` is among its source statuses."""

    def may_claim(self, state: RowState, fence: int) -> bool:
        return state.row_fence < fence


def visited(guard: Guard) -> Explored[RowState]:
    start = RowState((Run(),) * 3, deaths=1, expiries=2)
    return explore(start, RowModel(guard).moves, broken)


@pytest.mark.parametrize("guard", [Guard, WorksAgain])
def test_a_late_run_changes_nothing(guard: type[Guard]) -> None:
    found = visited(guard())
    found.check_end(
        lambda state: state.status == "done" or any(run.doing == "dead" for run in state.runs),
        without=frozenset(),
        name="the work gets done",
    )
    print(f"{len(found.states)} states")


@pytest.mark.parametrize(
    ("guard", "name"),
    [(ClaimsWithoutTheFence, LATE_CLAIM), (FinishesWithoutTheFence, LATE_RESULT)],
)
def test_a_planted_fault_is_found(guard: type[Guard], name: str) -> None:
    with pytest.raises(Violation) as caught:
        visited(guard())
    assert caught.value.broken == name
