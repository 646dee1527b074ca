"""Sending lost rows again as an operator has seen them, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .guarded import key_of, text_of_key
from .lost_work import lost_rows, works_by_rows
from .problems import Problem

__all__ = ["SeenRow", "still_lost"]


class SeenRow(NamedTuple):
    """A lost row as the doctor has found it: its task and store, its key as text, its fence."""

    task: str
    store: str
    pk: str
    fence: int | None = None

    @classmethod
    def of(cls, problem: Problem) -> SeenRow:
        """The row of a problem of the kind "lost work"."""
        assert problem.work is not None
        return cls(problem.work.task, problem.work.store, text_of_key(problem.pk), problem.fence)


def still_lost(seen: Sequence[SeenRow]) -> dict[SeenRow, Problem]:
    """Return the problem of each row that is lost now as it was seen: with that fence.

    The rows are looked at as the doctor looks at them. Raises `StoreUnavailable`, and what
    importing the tasks raises.
    """
    found: dict[SeenRow, Problem] = {}
    for same_rows in works_by_rows():
        tasks = {(work.task, work.store) for work in same_rows}
        keys = [
            key_of(same_rows[0].guard, each.pk) for each in seen if (each.task, each.store) in tasks
        ]
        if keys:
            for problem in lost_rows(same_rows, [key for key in keys if key is not None]):
                if problem.kind == "lost work":
                    found[SeenRow.of(problem)] = problem
    return {each: found[each] for each in seen if each in found}
