"""``manage.py locks hold``: a lock kept from jobs by an operator."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from .._engine.service import locks
from ..operators.holders import sentence
from ..stores.base import Refusal
from .arguments import add_format, add_wait, lock_name, lock_ttl, user
from .run_command import HELD_ELSEWHERE
from .tables import json_row

__all__ = ["add_arguments", "hold_lock"]


def add_arguments(parser: CommandParser) -> None:
    """Add the lock, for how long, who holds it, and why."""
    parser.add_argument("name", type=lock_name, metavar="NAME")
    long: Any = {"dest": "ttl", "type": lock_ttl, "required": True, "metavar": "DURATION"}
    parser.add_argument("--for", help="30s, 10m, 2h, 1d, 1h30m, or a number of seconds", **long)
    parser.add_argument("--reason", default="", help="why, for those who find the lock held")
    parser.add_argument("--by", metavar="NAME", help="the operator (default: this shell's user)")
    add_wait(parser)
    add_format(parser)


def hold_lock(command: BaseCommand, **options: Any) -> None:
    """
    Hold a lock as an operator: no job that needs it starts until the hold ends.

    A job that needs the lock is skipped or waits, as for any other holder.
    `locks clear` ends the hold earlier. Nobody loses a lock by a hold: it exits 75
    if somebody else holds the lock.

    examples:
      manage.py locks hold nightly-report --for 2h --reason 'database migration'
      manage.py locks hold video:123 --for 30m --wait 600
    """
    service, name = locks.using(options["store"]), options["name"]
    by = user() if options["by"] is None else options["by"]
    try:
        held = service.try_hold(name, options["ttl"], by, options["reason"], wait=options["wait"])
    except ValueError as error:
        raise CommandError(f"{error}.") from error
    if isinstance(held, Refusal):
        raise CommandError(f"{name}: {sentence(held.holder)}", returncode=HELD_ELSEWHERE)
    said = json.dumps(json_row(held)) if options["format"] == "json" else None
    command.stdout.write(said or f"{name}: {sentence(held)}")
