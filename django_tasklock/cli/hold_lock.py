"""``manage.py locks hold``: a lock kept from jobs by an operator."""

from __future__ import annotations

import json
import signal
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from .._engine.service import locks
from .._values.describe import printable
from ..operators.holders import sentence
from ..stores.base import Refusal
from .run_command import HELD_ELSEWHERE
from .tables import json_row
from .verb import Verb, lock_name, lock_ttl, user

__all__ = ["VERB", "hold_lock"]


def add_arguments(parser: CommandParser) -> None:
    """Add the lock, for how long, who holds it, and why."""
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--for",
        dest="ttl",
        type=lock_ttl,
        required=True,
        metavar="DURATION",
        help="how long: 30s, 10m, 2h, 1d, 1h30m, or a number of seconds",
    )
    parser.add_argument(
        "--reason", default="", metavar="TEXT", help="why, for those who find the lock held"
    )
    parser.add_argument(
        "--by", metavar="NAME", help="who holds it (default: the user of this shell)"
    )
    parser.add_argument(
        "--wait",
        type=float,
        nargs="?",
        default=0,
        metavar="SECONDS",
        help="how long to wait until the present holder has ended; without a number: for ever "
        "(default: do not wait)",
    )


def hold_lock(command: BaseCommand, **options: Any) -> None:
    """Hold the lock for the operator, and print what holds it now.

    Raises `CommandError` for a wrong argument, and with the ``returncode`` `HELD_ELSEWHERE` if
    somebody else holds the lock; `StoreUnavailable`.
    """
    name, ttl = lock_name(options["name"]), options["ttl"]
    by = user() if options["by"] is None else options["by"]
    try:
        held = locks.using(options["store"]).try_hold(
            name, ttl, by, options["reason"], wait=options["wait"]
        )
    except ValueError as error:
        raise CommandError(f"{error}.") from error
    except KeyboardInterrupt:
        message = f"Interrupted: {printable(name)} is not held for you."
        raise CommandError(message, returncode=128 + signal.SIGINT) from None
    if isinstance(held, Refusal):
        message = f"{printable(name)}: {sentence(held.holder)}"
        raise CommandError(message, returncode=HELD_ELSEWHERE)
    if options["format"] == "json":
        command.stdout.write(json.dumps(json_row(held), indent=2))
    else:
        command.stdout.write(f"{printable(name)}: {sentence(held)}")


VERB = Verb(
    "hold",
    "Hold a lock as an operator: no job that needs it starts until then. Such a job is skipped or "
    "waits, as for any holder. `locks clear` ends it earlier. Exits with "
    f"{HELD_ELSEWHERE} if somebody else holds the lock.",
    (
        "manage.py locks hold nightly-report --for 2h --reason 'database migration'",
        "manage.py locks hold video:123 --for 30m --wait 600",
    ),
    add_arguments,
    hold_lock,
)
