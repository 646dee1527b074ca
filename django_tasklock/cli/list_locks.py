"""``manage.py locks list``: the locks of a store."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from .._engine.service import LockService, locks
from .._values.describe import printable
from .._values.liveness import Liveness
from .._values.lock_info import LockInfo
from .._values.ordering import ORDERS, in_order
from ..exceptions import TaskLockError
from ..operators.held import is_internal, listed
from ..operators.holders import who
from ..stores import stores
from .queued import list_queued
from .tables import LOCK_COLUMNS, as_json, json_row, lock_cells, write_table
from .verb import Verb, number

__all__ = ["VERB", "matching"]

CSV_FIELDS = (
    "name", "ttl", "acquired_at", "host", "pid", "alive", "thread", "task", "task_id",
    "fence", "waiters", "longest_wait", "renewing", "token", "store", "key", "held_by", "reason",
    "slot", "cooling",
)  # fmt: skip


def add_arguments(parser: CommandParser) -> None:
    """Add which locks to list, and in which order."""
    parser.add_argument("prefix", nargs="?", default="", metavar="PREFIX")
    parser.add_argument("--task", metavar="TASK", help="only of this task (with * and ?)")
    parser.add_argument(
        "--owner", metavar="WHO", help="only of this host, host:pid or operator (with * and ?)"
    )
    parser.add_argument(
        "--sort",
        choices=ORDERS,
        default="ttl",
        metavar="ORDER",
        help=f"one of {', '.join(ORDERS[:5])}; the reverse as --sort=-age (default: %(default)s)",
    )
    parser.add_argument("--limit", type=number, metavar="N", help="at most N of them")
    parser.add_argument(
        "--scan",
        action="store_true",
        help="walk through the whole store: also finds keys that no lease set",
    )
    parser.add_argument(
        "--queued",
        action="store_true",
        help="the jobs that are reserved for a message in the queue (unique_while) instead of "
        "locks: further calls of them are duplicates",
    )


def matching(
    service: LockService,
    prefix: str = "",
    task: str | None = None,
    owner: str | None = None,
    *,
    limit: int | None = None,
    scan: bool = False,
) -> list[LockInfo]:
    """Return the locks of the prefix, and with that task and owner (with * and ?).

    ``scan``: keys that no lease set too. Raises `ListingNotSupported` and `StoreUnavailable`.
    """
    found: Iterable[LockInfo] = service.store.scan(prefix) if scan else ()
    some = [info for info in found if not is_internal(info)]
    if not scan:
        some = listed(service, prefix, limit)
    if task is not None:
        some = [info for info in some if fnmatchcase(info.owner.task or "", task)]
    if owner is not None:
        some = [info for info in some if any(fnmatchcase(said, owner) for said in _owner(info))]
    return some


def list_locks(command: BaseCommand, **options: Any) -> None:
    """Print the chosen locks, or reservations. Raises `ListingNotSupported`, `StoreUnavailable`."""
    service, prefix = locks.using(options["store"]), options["prefix"]
    if options["queued"]:
        list_queued(command, service.store, options)
        return
    narrow = options["task"], options["owner"]
    limit, sort, form = options["limit"], options["sort"], options["format"]
    enough = limit if sort == "ttl" and not any(narrow) else None
    found = matching(service, prefix, *narrow, limit=enough, scan=options["scan"])
    found = in_order(found, sort, limit)
    liveness = Liveness()
    if form == "json":
        command.stdout.write(as_json(json_row(info, liveness) for info in found))
    elif form == "csv":
        writer = csv.DictWriter(command.stdout, CSV_FIELDS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(_flat(json_row(info, liveness)) for info in found)
    elif found:
        write_table(command, LOCK_COLUMNS, list(map(lock_cells(liveness), found)))
    else:
        command.stdout.write(_none(service, prefix if not any(narrow) else ""))


def _owner(info: LockInfo) -> list[str]:
    owner = info.owner
    return [owner.host or "", who(owner), owner.held_by or ""]


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    return {**row["owner"], **row}


def _none(service: LockService, prefix: str) -> str:
    """That there are none, and where there are some."""
    said = [f"No locks begin with {printable(prefix)!r}." if prefix else "No locks."]
    for alias in [service.alias] * bool(prefix) + [one for one in stores if one != service.alias]:
        try:
            count = service.using(alias).count()
        except TaskLockError:
            continue  # Not known is not none.
        if count:
            said.append(f"The store {printable(alias)!r} has {count:,}.")
    return " ".join(said)


VERB = Verb(
    "list",
    "Show the live locks, the soonest to expire first.",
    (
        "manage.py locks list video:",
        "manage.py locks list --task 'videos.*' --limit 20",
        "manage.py locks list --queued",
        "manage.py locks list --format json | jq -r '.[].name'",
    ),
    add_arguments,
    list_locks,
    ("table", "json", "csv"),
)
