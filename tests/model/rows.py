"""The steps of runs that take a lock and then a guarded row: claim, body, finish, release.

The statements are those of `django_tasklock.guards.StatusGuard` with a ``fence_field``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.search import Move

__all__ = [
    "LATE_CLAIM",
    "LATE_RESULT",
    "STRANDED",
    "Guard",
    "RowModel",
    "RowState",
    "Run",
    "broken",
]

LATE_CLAIM = "a late run does not take the row from a later one"
LATE_RESULT = "the result of a late run does not count"
STRANDED = "a row is never stranded"


class Run(NamedTuple):
    doing: str = "asks"
    """then: claims, works, releases; done, dead"""
    fence: int = 0


class RowState(NamedTuple):
    runs: tuple[Run, ...]
    held: int | None = None
    """which run's lease holds the lock"""
    last_fence: int = 0
    status: str = "uploaded"
    row_fence: int = 0
    claimed: int = 0
    """the greatest fence that has claimed the row"""
    deaths: int = 0
    expiries: int = 0
    wrong: str = ""


class Guard:
    """The two statements: each is one conditional UPDATE."""

    def may_claim(self, state: RowState, fence: int) -> bool:
        return state.status in ("uploaded", "processing") and state.row_fence < fence

    def may_finish(self, state: RowState, fence: int) -> bool:
        return state.status == "processing" and state.row_fence == fence


class RowModel(NamedTuple):
    guard: Guard

    def moves(self, state: RowState) -> Iterator[Move]:
        for at, run in enumerate(state.runs):
            name = f"run {'ABC'[at]}"
            if run.doing in ("done", "dead"):
                continue
            if state.deaths:
                after = state._replace(deaths=state.deaths - 1)
                yield Move((name, "dies"), _with(after, at, Run("dead")), "fault")
            # A run is stopped anywhere by not being chosen here: it knows nothing of the others.
            if run.doing == "asks" and state.held is None:
                fence = state.last_fence + 1
                after = state._replace(held=at, last_fence=fence)
                yield Move((name, "gets the lock"), _with(after, at, Run("claims", fence)))
            elif run.doing == "claims":
                yield Move((name, "claims the row"), self._claimed(state, at, run))
            elif run.doing == "works":
                yield Move((name, "finishes the row"), self._finished(state, at, run))
            elif run.doing == "releases":
                after = state._replace(held=None if state.held == at else state.held)
                yield Move((name, "releases"), _with(after, at, Run("done")))
        if state.held is not None:
            gone = state.runs[state.held].doing in ("done", "dead")
            if gone or state.expiries:
                left = state.expiries - (not gone)
                after = state._replace(held=None, expiries=left)
                yield Move(("the lease runs out",), after, "expiry")

    def _claimed(self, state: RowState, at: int, run: Run) -> RowState:
        if not self.guard.may_claim(state, run.fence):
            return _with(state, at, run._replace(doing="releases"))
        wrong = LATE_CLAIM if run.fence < state.claimed else state.wrong
        state = state._replace(
            status="processing", row_fence=run.fence, wrong=wrong,
            claimed=max(run.fence, state.claimed),
        )  # fmt: skip
        return _with(state, at, run._replace(doing="works"))

    def _finished(self, state: RowState, at: int, run: Run) -> RowState:
        if self.guard.may_finish(state, run.fence):
            wrong = LATE_RESULT if run.fence < state.claimed else state.wrong
            state = state._replace(status="done", wrong=wrong)
        return _with(state, at, run._replace(doing="releases"))


def broken(state: RowState, moves: list[Move]) -> str | None:
    if state.wrong:
        return state.wrong
    ends = {each.doing for each in state.runs}
    if ends == {"done"} and state.status != "done":
        return STRANDED
    return None


def _with(state: RowState, at: int, run: Run) -> RowState:
    return state._replace(runs=(*state.runs[:at], run, *state.runs[at + 1 :]))
