"""``manage.py locks show``: all that is known of one lock."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from .._engine.service import locks
from .._values.describe import printable
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from ..operators.held import held_permits
from ..operators.holders import sentence
from ..operators.rows import label_of, row_if_known
from .tables import (
    LOCK_COLUMNS,
    WAITER_COLUMNS,
    fields_of,
    json_row,
    lock_cells,
    waiter_cells,
    write_fields,
    write_table,
)
from .verb import Verb, lock_name

__all__ = ["VERB", "show_lock"]


def add_arguments(parser: CommandParser) -> None:
    """Add the name of the lock."""
    parser.add_argument("name", metavar="NAME")


def show_lock(command: BaseCommand, **options: Any) -> None:
    """Print the lock, its guarded row and its waiters; or the permits, where those are held.

    Raises `CommandError` if it is not locked, and `StoreUnavailable`.
    """
    name = lock_name(options["name"])
    service = locks.using(options["store"])
    info, out = service.get(name), command.stdout
    permits = held_permits(service, name) if info is None else []
    # None: the store does not count them with the lock, but may know them.
    waiting = service.waiters(name) if info is None or info.waiters != 0 else []
    if info is None and not permits and not waiting:
        raise CommandError(f"{name} is not locked.")
    try:
        row, unknown = info and _row(info), None
    except ImportError as error:
        row, unknown = None, str(error)
    if options["format"] == "json":
        found: dict[str, Any] = {"waiting": [_waiter(owner) for owner in waiting]}
        if info is None:
            found |= {"name": name, "permits": [json_row(permit) for permit in permits]}
        else:
            found |= json_row(info) | {"row": row}
        out.write(json.dumps(found, indent=2))
        return
    if info is None:
        out.write(f"{printable(name)} itself is not locked. Permits of it (slots=N):\n")
        if permits:
            write_table(command, LOCK_COLUMNS, list(map(lock_cells(), permits)))
    else:
        out.write(f"{sentence(info)}\n")
        write_fields(command, fields_of(info) | {"row": row or unknown})
    if waiting:
        out.write("\nWait queue:")
        write_table(command, WAITER_COLUMNS, list(map(waiter_cells, range(1, 101), waiting)))


def _waiter(owner: Owner) -> dict[str, Any]:
    return {"waiting_since": None, **owner.as_dict()}


def _row(info: LockInfo) -> str | None:
    """The guarded row; None if there is none. Raises `ImportError` if the tasks are not known."""
    found = row_if_known(info)
    return None if found is None else label_of(found[0])


VERB = Verb(
    "show",
    "Show all that is known of one lock. Exits 1 if it is not locked.",
    (
        "manage.py locks show video:123",
        "manage.py locks show video:123 --format json | jq .owner.task_id",
    ),
    add_arguments,
    show_lock,
)
