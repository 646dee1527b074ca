"""What must not happen: functions of a story."""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos_tasks.rules.calls import (
    given_up_early,
    lock_of_the_dead,
    skipped_wrongly,
    too_many_runs,
    two_at_once,
    unexpected_failures,
)
from tests.chaos_tasks.rules.ends import leftovers, workers_ended
from tests.chaos_tasks.rules.full_disk import NO_ROOM, left_behind
from tests.chaos_tasks.rules.rows import (
    changed_after_the_end,
    done_twice,
    falling_fences,
    finished_by_another,
    not_over,
)
from tests.chaos_tasks.rules.violation import Rule, Violation

__all__ = ["NO_ROOM", "RULES", "Violation"]

RULES: Sequence[Rule] = (
    done_twice, changed_after_the_end, finished_by_another, falling_fences, not_over, left_behind,
    unexpected_failures, given_up_early, too_many_runs, two_at_once, skipped_wrongly,
    lock_of_the_dead, leftovers, workers_ended,
)  # fmt: skip
