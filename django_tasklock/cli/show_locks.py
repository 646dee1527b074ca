"""``manage.py locks list`` and ``show``: what is held."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from .._engine.service import LockService, locks
from .._values.durations import duration
from .._values.lock_info import LockInfo
from .._values.owner import Owner, task_words
from .._values.printable import printable
from ..exceptions import TaskLockError
from ..operators.held import held_permits
from ..operators.holders import asked_once, sentence, who
from ..operators.reservations import QueuedJob, queued_jobs
from ..operators.rows import label_of, row_if_known
from ..stores import stores
from .arguments import add_format, lock_name, number
from .tables import Row, json_row, lock_cells, since, write_fields, write_rows, write_table


def add_list_arguments(parser: CommandParser) -> None:
    """Add which locks to list, and in which order."""
    parser.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="of the names")
    parser.add_argument("--task", help="only locks of this task (* and ? are wildcards)")
    parser.add_argument("--limit", type=number, metavar="N", help="at most N")
    parser.add_argument("--queued", action="store_true", help="unique_while reservations, no locks")
    add_format(parser, "csv")


def add_show_arguments(parser: CommandParser) -> None:
    """Add the name of the lock."""
    parser.add_argument("name", type=lock_name, metavar="NAME")
    add_format(parser)


def list_locks(command: BaseCommand, **options: Any) -> None:
    """
    Show the live locks, the soonest to expire first.

    A key that other code set is not in the list: `locks show NAME` finds it.

    examples:
      manage.py locks list video:
      manage.py locks list --task 'videos.*' --limit 20
      manage.py locks list --queued
      manage.py locks list --format json | jq -r '.[].name'
    """
    service, prefix, task = locks.using(options["store"]), options["prefix"], options["task"]
    form, limit = options["format"], options["limit"]
    if options["queued"]:
        jobs = queued_jobs(service.store, prefix, task, limit)
        rows, cells = map(QueuedJob.as_json, jobs), map(_job_cells, jobs)
        write_rows(command, form, rows, cells, "No reservations.")
        return
    found, alive = matching(service, prefix, task, limit), asked_once()
    none = _none(service, chosen=bool(prefix or task)) if form == "table" and not found else ""
    infos = (json_row(info, alive) for info in found)
    lines = (lock_cells(info, alive) for info in found)
    write_rows(command, form, infos, lines, none)


def show_lock(command: BaseCommand, **options: Any) -> None:
    """
    Show all that is known of one lock. Exits 1 if it is not locked.

    examples:
      manage.py locks show video:123
      manage.py locks show video:123 --format json | jq .owner.task_id
    """
    name, service = options["name"], locks.using(options["store"])
    info = service.get(name)
    permits = [] if info else held_permits(service, name)
    # None: the store does not count them with the lock, but may know them.
    waiting = service.waiters(name) if info is None or info.waiters != 0 else []
    if not (info or permits or waiting):
        raise CommandError(f"{name} is not locked.")
    if options["format"] == "json":
        command.stdout.write(_as_json(name, info, permits, waiting))
    elif info is not None:
        _write_held(command, info)
        _write_queue(command, waiting)
    else:
        _write_permits(command, name, permits)
        _write_queue(command, waiting)


def _as_json(
    name: str, info: LockInfo | None, permits: Sequence[LockInfo], waiting: Sequence[Owner]
) -> str:
    if info is None:
        shown: Row = {"name": name, "permits": list(map(json_row, permits))}
    else:
        shown = json_row(info) | {"row": _row_of(info)[0]}
    waiters = [{"waiting_since": None, **owner.as_dict()} for owner in waiting]
    return json.dumps(shown | {"waiting": waiters}, indent=2)


def _write_held(command: BaseCommand, info: LockInfo) -> None:
    """A sentence, and the fields of the lease and its owner."""
    row, unknown = _row_of(info)
    shown = json_row(info)
    owner = shown.pop("owner")
    # What tells a process from a later one is for programs.
    hidden = dict.fromkeys(("boot", "pidns", "timens", "start"))
    command.stdout.write(f"{sentence(info)}\n")
    write_fields(command, shown | {"row": row or unknown} | owner | hidden)


def _write_permits(command: BaseCommand, name: str, permits: Sequence[LockInfo]) -> None:
    command.stdout.write(f"{printable(name)} itself is not locked.")
    if permits:
        command.stdout.write("Permits of it (slots=N):\n")
        write_table(command, list(map(lock_cells, permits)))


def _write_queue(command: BaseCommand, waiting: Sequence[Owner]) -> None:
    if waiting:
        command.stdout.write("\nWait queue:")
        write_table(command, [_waiter_cells(*each) for each in enumerate(waiting, 1)])


def _row_of(info: LockInfo) -> tuple[str | None, str | None]:
    """The row that the holder works on; and why it is not known."""
    try:
        found = row_if_known(info)
    except ImportError as error:  # Of the modules with tasks.
        return None, str(error)
    return (None if found is None else label_of(found[0])), None


def matching(
    service: LockService, prefix: str | None, task: str | None, limit: int | None = None
) -> list[LockInfo]:
    """Return the locks that a prefix and a task (with * and ?) choose, the soonest to end first.

    Raises `ListingNotSupported` and `StoreUnavailable`.
    """
    found = service.list(prefix or "", None if task else limit)
    return [info for info in found if fnmatchcase(info.owner.task or "", task or "*")][:limit]


def _job_cells(job: QueuedJob) -> Row:
    ttl = "never" if job.ttl is None else duration(job.ttl)
    return {"NAME": job.name, "TTL": ttl, "TASK": job.task, "TASK ID": job.task_id}


def _waiter_cells(position: int, owner: Owner) -> Row:
    return {
        "POSITION": position,
        "WAITS": since(owner.waiting_since),
        "WHO": who(owner),
        "STATE": {None: None, True: "alive", False: "gone"}[owner.alive()],
        "TASK": task_words(owner),
    }


def _none(service: LockService, *, chosen: bool) -> str:
    """That there are none, or none of those that were ``chosen``; and where there are some."""
    said = ["No locks match." if chosen else "No locks."]
    for alias in stores:
        with suppress(TaskLockError):  # Not known is not none.
            if count := service.using(alias).count():
                said.append(f"The store {printable(alias)!r} has {count:,}.")
    return " ".join(said)
