"""``manage.py locks lead``: a command that runs in one of many places at a time."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from .._engine.service import locks
from .._engine.use import Use
from .._values.arguments import checked_ttl
from ..leader import wait_to_lead
from .leased_process import LeasedProcess
from .parsing import lock_name, seconds
from .run_command import release
from .verb import Verb

__all__ = ["VERB", "lead_command"]

TTL_SECONDS = 15.0
LONGEST_KILL_SECONDS = 1.0
"""what is left of the lease when the command gets SIGKILL, or a tenth of a short lease"""


def add_arguments(parser: CommandParser) -> None:
    """Add the lock, how long it lasts, and the command to run."""
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--ttl",
        type=float,
        default=TTL_SECONDS,
        metavar="SECONDS",
        help="of the lease, which is renewed: on another machine the next process takes over this "
        "long after the death of the leader (default: %(default)g)",
    )
    parser.add_argument(
        "--kill-after",
        type=seconds,
        metavar="SECONDS",
        help="time from SIGTERM to SIGKILL when the lease cannot be kept, at most half of the ttl "
        "(default: a third of it)",
    )
    parser.add_argument("argv", nargs="+", metavar="COMMAND")


def lead_command(command: BaseCommand, **options: Any) -> None:
    """Run the command whenever this process leads; exit with its status when it ends by itself.

    Raises `SystemExit` with the command's status, or 128 + the signal that ended it or this
    process; and `CommandError` for a wrong option.
    """
    name = lock_name(options["name"])
    try:
        ttl = checked_ttl(options["ttl"])
    except ValueError as error:
        raise CommandError(f"{error}.") from error
    kill_after = ttl / 3 if options["kill_after"] is None else options["kill_after"]
    if kill_after > ttl / 2:
        raise CommandError("--kill-after is at most half of --ttl.")
    service = locks.using(options["store"])
    task = f"locks lead {os.path.basename(options['argv'][0])}"
    while True:
        process = LeasedProcess(command, kill_after, min(LONGEST_KILL_SECONDS, ttl / 10))
        use = Use(None)
        with process.signals(), process.guardian(options["argv"]) as group:
            lease = wait_to_lead(service, name, ttl, task=task, use=use, group=group)
            try:
                status = process.run(lease)
            finally:
                process.end()
                release(command, lease)
        if process.end_signal is not None and process.stopped:
            sys.exit(128 + process.end_signal)
        if not process.stopped:
            sys.exit(status)


VERB = Verb(
    "lead",
    "Run a command in one place: of all processes that lead under this name, on all hosts, one "
    "runs its command, and the others wait. If the leader is killed, its command and everything "
    "that it started are killed too, and another one leads: at once on the same machine, after "
    "the ttl elsewhere. If the lease cannot be renewed, the command and everything that it "
    "started get SIGTERM, and SIGKILL before the lease is over; then this process waits again. "
    "Ends when the command ends by itself, with its status, or 128 + the signal that ended it.",
    "  manage.py locks lead beat -- celery -A project beat\n"
    "  manage.py locks lead importer --ttl 60 --kill-after 20 -- ./follow-the-feed.sh",
    add_arguments,
    lead_command,
    (),
)
