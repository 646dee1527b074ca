"""``manage.py locks show``: all that is known of one lock."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from .._engine.service import LockService, locks
from .._values.describe import printable
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from ..operators.guarded import label_of, row_if_known
from ..operators.permits import held_permits
from ..operators.work import CeleryMissing
from .columns import as_lines
from .parsing import lock_name
from .tables import LOCK_COLUMNS, as_sheet, as_waiter_lines, cells_of, json_row
from .verb import Verb

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
    info = service.get(name)
    if info is None:
        if _show_permits(command, service, name, options["format"]):
            return
        raise CommandError(f"{name} is not locked.")
    row, not_known = None, None
    try:
        row = _row(info)
    except CeleryMissing as error:
        not_known = str(error)
    # None: the store does not count them with the lock, but may know them.
    waiting = service.waiters(name) if info.waiters != 0 else []
    if options["format"] == "json":
        more = {"row": row, "waiting": [_waiter(owner) for owner in waiting]}
        command.stdout.write(json.dumps(json_row(info) | more, indent=2))
    else:
        command.stdout.write(as_sheet(info, row or not_known))
        if waiting:
            command.stdout.write(f"\n{as_waiter_lines(waiting)}")


def _show_permits(command: BaseCommand, service: LockService, name: str, form: str) -> bool:
    """Print which permits of the name are held, and who waits. Returns False if there are none."""
    permits, waiting = held_permits(service, name), service.waiters(name)
    if not permits and not waiting:
        return False
    if form == "json":
        found = {
            "name": name,
            "permits": [json_row(info) for info in permits],
            "waiting": [_waiter(owner) for owner in waiting],
        }
        command.stdout.write(json.dumps(found, indent=2))
        return True
    command.stdout.write(f"{printable(name)} itself is not locked. Permits of it (slots=N):\n")
    command.stdout.write(as_lines(LOCK_COLUMNS, [cells_of(info) for info in permits]))
    if waiting:
        command.stdout.write(f"\n{as_waiter_lines(waiting)}")
    return True


def _waiter(owner: Owner) -> dict[str, Any]:
    """A waiter as JSON-able values."""
    return {"waiting_since": None, **owner.as_dict()}


def _row(info: LockInfo) -> str | None:
    """The model and key of the guarded row; None if there is none, or none is known."""
    row = row_if_known(info)
    return None if row is None else label_of(row)


VERB = Verb(
    "show",
    "Show all that is known of one lock. Exits 1 if it is not locked.",
    "  manage.py locks show video:123\n"
    "  manage.py locks show video:123 --format json | jq .owner.task_id",
    add_arguments,
    show_lock,
)
