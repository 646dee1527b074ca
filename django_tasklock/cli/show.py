"""``manage.py locks list``, ``show`` and ``history``: what is held, and what happened."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from functools import partial
from math import inf
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from .._engine.service import LockService, locks
from .._values.lock_info import Event, LockInfo
from .._values.owner import Owner, task_words
from .._values.words import duration, printable
from ..operators.events import moment, seen_events, why, within
from ..operators.held import QueuedJob, held_permits, queued_jobs
from ..operators.holders import STATES, holder_of, sentence, states_of, who
from ..operators.rows import label_of, row_if_known
from .arguments import add_format, lock_name, number
from .tables import Row, json_row, lock_cells, since, write_fields, write_rows, write_table


def add_list_arguments(parser: CommandParser) -> None:
    """Add which locks to list, and in which order."""
    parser.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="of the names")
    parser.add_argument("--task", help="only locks of this task (* and ? are wildcards)")
    state: Any = {"choices": STATES, "metavar": "STATE"}
    parser.add_argument("--state", help=f"only locks that are {', '.join(STATES)}", **state)
    parser.add_argument("--sort", choices=["end", "age"], default="end", help="age: oldest first")
    parser.add_argument("--limit", type=number, metavar="N", help="at most N")
    parser.add_argument("--queued", action="store_true", help="unique_while reservations, no locks")
    add_format(parser)


def add_show_arguments(parser: CommandParser) -> None:
    """Add the name of the lock."""
    parser.add_argument("name", type=lock_name, metavar="NAME")
    add_format(parser)


def list_locks(command: BaseCommand, **options: Any) -> None:
    """
    Show the live locks, the soonest to expire first, or with --sort age the oldest.

    A key that other code set is not in the list: `locks show NAME` finds it.

    examples:
      manage.py locks list video:
      manage.py locks list --task 'videos.*' --limit 20
      manage.py locks list --state overdue --sort age
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
    state, oldest = options["state"], options["sort"] == "age"
    found = matching(service, prefix, task, None if state or oldest else limit)
    found = [info for info in found if not state or state in states_of(info, holder_of(info))]
    if oldest:
        found.sort(key=lambda info: info.acquired_at.timestamp() if info.acquired_at else inf)
    found = found[:limit]
    none = "No locks match." if prefix or task or state else "No locks."
    write_rows(command, form, map(json_row, found), map(lock_cells, found), none)


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
    shown: Row = {"name": name, "permits": list(map(json_row, permits))}
    if info is not None:
        row = row_if_known(info)
        shown = json_row(info) | {"row": label_of(row[0]) if row else None}
    if options["format"] == "json":
        waiters = [{"waiting_since": None, **owner.as_dict()} for owner in waiting]
        command.stdout.write(json.dumps(shown | {"waiting": waiters}, indent=2))
        return
    if info is not None:
        owner = shown.pop("owner")
        # What tells a process from a later one is for programs.
        hidden = dict.fromkeys(("boot", "pidns", "timens", "start"))
        command.stdout.write(f"{sentence(info)}\n")
        write_fields(command, shown | owner | hidden)
    else:
        command.stdout.write(f"{printable(name)} itself is not locked.")
    if permits:
        command.stdout.write("Permits of it (slots=N):\n")
        write_table(command, list(map(lock_cells, permits)))
    if waiting:
        command.stdout.write("\nWait queue:")
        write_table(command, [_waiter_cells(*each) for each in enumerate(waiting, 1)])


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


def add_history_arguments(parser: CommandParser) -> None:
    """Add which events to show."""
    parser.add_argument("name", nargs="?", type=lock_name, metavar="NAME")
    parser.add_argument("--task-id", metavar="ID", help="only events of the task with this id")
    parser.add_argument("--limit", type=number, default=100, metavar="N", help="(default: 100)")
    add_format(parser)


def show_history(command: BaseCommand, **options: Any) -> None:
    """
    Show what happened to the locks: who was refused or skipped, who cleared one.

    The newest event comes first. Equal ones are one line, which tells of the newest
    one; JSON has each. --task-id says why that task was skipped, and who held the
    lock. WHO is the one to whom it happened; BY held the lock, or did it.

    examples:
      manage.py locks history video:123 --limit 20
      manage.py locks history --task-id 0f0d6b0e-6b3e-4a67-9a4c-2f7d8d1f4f55
    """
    service, form = locks.using(options["store"]), options["format"]
    ask = service.history if form == "json" else partial(seen_events, service)
    found = ask(options["name"], options["task_id"], options["limit"])
    rows, cells = map(Event.as_json, found), map(_event_cells, found)
    write_rows(command, form, rows, cells, "No events.")


def _event_cells(event: Event) -> Row:
    by, holder = event.by, event.holder
    if holder is not None:
        # Of a message that has not begun to run, only the task is known.
        place = who(holder) if holder.host or not holder.task else None
        by = " ".join(filter(None, (place, task_words(holder))))
    return {
        "AGE": since(event.at),
        "AT": moment(event.at)[-8:],  # Its age says which day it was.
        "WHAT": event.kind,
        "COUNT": f"{event.count:,}" if event.count > 1 else None,
        "WITHIN": within(event),
        "NAME": event.name,
        "TASK": task_words(event.owner),
        "WHO": who(event.owner),
        "BY": by,
        "SECONDS": None if event.seconds is None else duration(event.seconds),
        "REASON": why(event),
    }
