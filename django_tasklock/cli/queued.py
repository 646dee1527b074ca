"""``manage.py locks list --queued`` and ``clear --queued``: reservations in the queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from .._values.describe import duration, printable
from ..operators.clearing import Outcome
from ..operators.reservations import QueuedJob, clear_job, queued_jobs
from ..stores.base import BaseStore
from .asking import DRY_RUN, Report, ask
from .tables import as_json, as_table, write_table

__all__ = ["clear_queued", "list_queued"]

COLUMNS = ("NAME", "TTL", "TASK", "TASK ID")
NONE = "No reservations."


def list_queued(command: BaseCommand, store: BaseStore, options: dict[str, Any]) -> None:
    """Print the reservations that match the options of ``list --queued``, the soonest to end first.

    Raises `ListingNotSupported`, and `CommandError` for an option that does not apply to them.
    """
    if options["owner"] or options["scan"] or options["sort"] != "ttl":
        raise CommandError(
            "--owner, --scan and --sort do not apply to reservations: no process holds them."
        )
    if options["format"] == "csv":
        raise CommandError("Reservations are printed as table or json.")
    jobs = queued_jobs(store, options["prefix"], options["task"], options["limit"])
    if options["format"] == "json":
        command.stdout.write(as_json(job.as_json() for job in jobs))
    elif jobs:
        write_table(command, COLUMNS, list(map(_cells, jobs)))
    else:
        command.stdout.write(NONE)


def clear_queued(
    command: BaseCommand, store: BaseStore, names: Sequence[str], options: dict[str, Any], by: str
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
    if jobs and (options["interactive"] or options["dry_run"]):
        table = as_table(COLUMNS, list(map(_cells, jobs)))
        ask(command, table, "reservation", len(jobs), only_show=options["dry_run"])
    report = Report(command, options["format"], _reserved, nothing=NONE, not_there="not reserved")
    with report:
        for job in jobs:
            done = DRY_RUN if options["dry_run"] else clear_job(job, by=by).value
            report.add(job.name, done, job)
        for name in set(names) - {job.name for job in jobs}:
            report.add(name, Outcome.NOT_LOCKED.value, None)
    report.fail_unless_done(named=bool(names))


def _cells(job: QueuedJob) -> Sequence[str]:
    ttl = "never" if job.ttl is None else duration(job.ttl)
    return printable(job.name), ttl, printable(job.task), printable(job.task_id)


def _reserved(job: QueuedJob) -> str:
    return f"reserved for task {job.task}[{job.task_id}]"
