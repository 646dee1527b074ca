"""``manage.py locks list --queued`` and ``clear --queued``: reservations in the queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from .._values.describe import duration, printable
from ..exceptions import StoreUnavailable
from ..operators.clearing import Outcome
from ..operators.reservations import (
    QUEUED_ORDERS,
    QueuedJob,
    clear_job,
    in_queued_order,
    queued_jobs,
)
from ..stores.base import BaseStore
from .asking import ask, interrupted
from .columns import as_lines
from .tables import as_json

__all__ = [
    "NONE",
    "QUEUED_COLUMNS",
    "QUEUED_CSV_FIELDS",
    "WOULD_CLEAR",
    "cells_of",
    "chosen_jobs",
    "clear_queued",
]

QUEUED_COLUMNS = ("NAME", "TTL", "TASK", "TASK ID")
QUEUED_CSV_FIELDS = ("name", "ttl", "task", "task_id", "store")
NONE = "No reservations."
WOULD_CLEAR = "would clear"
CLEARED_BY = "manage.py locks clear --queued"


def cells_of(job: QueuedJob) -> tuple[str, ...]:
    """Return one row of the table; every cell is safe for a terminal."""
    ttl = "never" if job.ttl is None else duration(job.ttl)
    return printable(job.name), ttl, printable(job.task), printable(job.task_id)


def chosen_jobs(store: BaseStore, options: dict[str, Any]) -> list[QueuedJob]:
    """Return the reservations that match the options of ``list --queued``, in their order.

    Raises `ListingNotSupported`, and `CommandError` for an option that does not apply to them.
    """
    sort, expiring, limit = options["sort"], options["expiring"], options["limit"]
    for option in ("owner", "scan"):
        if options[option]:
            raise CommandError(f"--{option} does not apply to reservations: no process holds them.")
    if sort not in QUEUED_ORDERS:
        raise CommandError(f"Reservations can be sorted by {', '.join(QUEUED_ORDERS)}.")
    enough = limit if sort == "ttl" and expiring is None else None
    jobs = queued_jobs(store, options["prefix"], options["task"], enough)
    if expiring is not None:
        jobs = [job for job in jobs if job.ttl is not None and job.ttl <= expiring]
    return in_queued_order(jobs, sort)[:limit]


def clear_queued(
    command: BaseCommand, store: BaseStore, names: Sequence[str], options: dict[str, Any]
) -> None:
    """Clear the reservations of ``names``, or those that match the options, each as it was seen.

    Raises `CommandError` for a name that is not reserved, and for one that is now reserved for
    another message; `ListingNotSupported` and `StoreUnavailable`.
    """
    if options["owner_gone"]:
        raise CommandError("--owner-gone does not apply to reservations: no process holds them.")
    jobs = queued_jobs(store, options["prefix"] or "", options["task"])
    if names:
        jobs = [job for job in jobs if job.name in names]
    elif jobs and options["interactive"] and not options["dry_run"]:
        which = "this reservation" if len(jobs) == 1 else f"these {len(jobs)} reservations"
        ask(command, as_lines(QUEUED_COLUMNS, list(map(cells_of, jobs))), which)
    missing = [name for name in names if name not in {job.name for job in jobs}]
    outcomes: list[tuple[QueuedJob, str]] = []
    try:
        for job in jobs:
            dry_run = options["dry_run"]
            done = WOULD_CLEAR if dry_run else clear_job(job, by=CLEARED_BY).value
            outcomes.append((job, done))
    except (StoreUnavailable, KeyboardInterrupt) as error:
        if outcomes:  # Those that were cleared before that.
            _report(command, outcomes, missing, options)
        if isinstance(error, KeyboardInterrupt):
            raise interrupted(reported=bool(outcomes)) from None
        raise
    _report(command, outcomes, missing, options)
    _fail_unless_done(outcomes, missing, named=bool(names))


def _report(
    command: BaseCommand,
    outcomes: Sequence[tuple[QueuedJob, str]],
    missing: Sequence[str],
    options: dict[str, Any],
) -> None:
    if options["format"] == "json":
        rows: list[dict[str, Any]] = [
            {"name": job.name, "outcome": _word(outcome), "was": job.as_json()}
            for job, outcome in outcomes
        ]
        nothing = _word(Outcome.NOT_LOCKED.value)
        rows += [{"name": name, "outcome": nothing, "was": None} for name in missing]
        command.stdout.write(as_json(rows))
    elif not outcomes and not missing:
        command.stdout.write(NONE)
    else:
        for job, outcome in outcomes:
            left_alone = " (left alone)" if outcome == Outcome.CHANGED_HANDS.value else ""
            what = f"{job.name}, reserved for task {job.task}[{job.task_id}]"
            command.stdout.write(f"{_word(outcome)} {printable(what)}{left_alone}")


def _word(outcome: str) -> str:
    return "not reserved" if outcome == Outcome.NOT_LOCKED.value else outcome


def _fail_unless_done(
    outcomes: Sequence[tuple[QueuedJob, str]], missing: Sequence[str], *, named: bool
) -> None:
    gone = [job.name for job, outcome in outcomes if outcome == Outcome.NOT_LOCKED.value]
    changed = [job.name for job, outcome in outcomes if outcome == Outcome.CHANGED_HANDS.value]
    problems = []
    if named and (missing or gone):
        absent = [*missing, *gone]
        is_ = "is" if len(absent) == 1 else "are"
        problems.append(f"{', '.join(map(printable, absent))} {is_} not reserved in the queue.")
    if changed:
        problems.append(
            f"{', '.join(map(printable, changed))} changed hands meanwhile, left alone."
        )
    if problems:
        raise CommandError(" ".join(problems))
