"""``manage.py locks run`` and ``locks lead``: a command under a lock."""

from __future__ import annotations

import os
import shlex
import sys
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from .._engine.acquiring import How, extend_handed_over
from .._engine.lease import Lease
from .._engine.lock import Block
from .._engine.waiting import blocking
from .._values.words import printable
from ..exceptions import LockNotAcquired, StoreUnavailable
from ..leader import Leading, wait_to_lead
from ..operators.holders import sentence
from .arguments import add_wait, exit_status, lock_name, lock_ttl, seconds
from .leased_group import LeasedGroup

# Exit statuses that are not the command's own. OUTAGE: the store did not answer, and nothing was
# run. HELD_ELSEWHERE: somebody else holds the lock, and nothing was run. LOST: the lock was lost
# while the command ran. In sysexits.h they are EX_UNAVAILABLE, EX_TEMPFAIL (try again later) and
# EX_NOPERM.
OUTAGE, HELD_ELSEWHERE, LOST = 69, 75, 77

RUN_SECONDS = {
    "--kill-after": "from SIGTERM to SIGKILL when the lock is lost (default: 10)",
    "--hold-at-least": "the lock stays taken at least this long after it was acquired",
    "--cooldown": "the lock stays taken for this long after the command exits with 0",
    "--cooldown-after-error": "the lock stays taken for this long after any other status",
}


def add_run_arguments(parser: CommandParser) -> None:
    """Add the lock, how to take it, and the command to run."""
    ttl = "of the lease, which is renewed while the command runs (default: the store's TTL)"
    _add_arguments(parser, None, ttl)
    add_wait(parser)
    code: Any = {"type": exit_status, "default": HELD_ELSEWHERE, "metavar": "N"}
    parser.add_argument("--conflict-exit-code", help="of a refusal, in place of 75", **code)
    for option, text in RUN_SECONDS.items():
        parser.add_argument(option, type=seconds, default=0.0, metavar="SECONDS", help=text)
    parser.set_defaults(kill_after=10.0)


def add_lead_arguments(parser: CommandParser) -> None:
    """Add the lock, how long it lasts, and the command to run."""
    ttl = "of the lease: within it another machine leads after the leader's death (default: 15)"
    _add_arguments(parser, 15.0, ttl)


def _add_arguments(parser: CommandParser, ttl: float | None, text: str) -> None:
    parser.add_argument("name", type=lock_name, metavar="NAME", help="of the lock")
    parser.add_argument("--ttl", type=lock_ttl, default=ttl, metavar="SECONDS", help=text)
    parser.add_argument("argv", nargs="+", metavar="COMMAND", help="with its arguments, behind --")


def run_command(command: BaseCommand, **options: Any) -> None:
    """
    Run a command under a lock.

    While it runs on one host, no other host runs it. If the lock is lost, the
    command and its process group get SIGTERM, and SIGKILL a little later. If this
    process is killed, they are killed too. Where cron runs it on several hosts,
    give --hold-at-least more seconds than their clocks differ.

    Exits with the command's own status, or 128 + the signal that ended it. Other
    exit statuses:
      75: somebody else holds the lock
      69: the store did not answer
      77: the lock was lost while the command ran

    examples:
      manage.py locks run nightly-report -- ./report.sh --mail
      manage.py locks run deploy --ttl 30 --wait 600 -- ./deploy.sh
      0 3 * * *  manage.py locks run backup --conflict-exit-code 0 -- /opt/backup
    """
    group = LeasedGroup(options["argv"], options["kill_after"])
    status = group.run(partial(_lease, command, options))
    if not group.kept:
        # What ran without its lock is never reported as a success.
        raise CommandError(
            f"The lock {options['name']} was lost while the command ran.", returncode=LOST
        )
    sys.exit(status)


def lead_command(command: BaseCommand, **options: Any) -> None:
    """
    Run a command in one process of all that lead under this name, on all hosts.

    The others wait. If the leader is killed, its command and its process group are
    killed too, and another one leads: at once on the same machine, after the ttl
    elsewhere. If the lease cannot be renewed, they get SIGTERM, and SIGKILL a third
    of the ttl later, before the lease is over; then this process waits again. It
    ends when the command ends by itself, with its status, or 128 + the signal that
    ended it.

    examples:
      manage.py locks lead beat -- celery -A project beat
      manage.py locks lead importer --ttl 60 -- ./follow-the-feed.sh
    """
    name, ttl, argv = options["name"], options["ttl"], options["argv"]
    task = _task("locks lead", argv)
    how = How(options["store"], ttl, wait=None, renew=True)
    spare = ttl / 3 + min(1.0, ttl / 10)  # The SIGKILL comes before the lease is over.
    while True:
        group = LeasedGroup(argv, ttl / 3, spare)
        block = Leading(how, name, task=task)  # It lives as long as the group.
        try:
            status = group.run(partial(_lead, block))
        except ValueError as error:  # As for `run`.
            raise CommandError(f"{error}.") from error
        if not group.stopped:
            sys.exit(status)
        if group.end_signal is not None:
            sys.exit(128 + group.end_signal)


def _task(what: str, argv: list[str]) -> str:
    """Return the command, without the folder of its program, as the task of its lock."""
    return f"{what} {shlex.join([os.path.basename(argv[0]), *argv[1:]])}"


def _lead(block: Leading, group: int) -> Lease:
    block.said["group"] = group
    return extend_handed_over(wait_to_lead(block))


def _lease(command: BaseCommand, options: dict[str, Any], group: int) -> Lease:
    asked = "store", "ttl", "wait", "hold_at_least", "cooldown", "cooldown_after_error"
    how = How(**{option: options[option] for option in asked}, renew=True)
    block = Block(how, options["name"], task=_task("locks run", options["argv"]), group=group)
    try:
        lease: Lease = blocking(block.steps())
        return lease.alone()
    except StoreUnavailable as error:
        raise CommandError(printable(error), returncode=OUTAGE) from error
    except ValueError as error:  # No lease of the store lasts for so long.
        raise CommandError(f"{error}.") from error
    except LockNotAcquired as error:
        holder: Any = error.holder
    status, said = options["conflict_exit_code"], f"{holder.name}: {sentence(holder)}"
    if status and options["verbosity"]:
        raise CommandError(said, returncode=status)
    if options["verbosity"]:  # A status of 0 was asked for: this is no error.
        command.stdout.write(said)
    sys.exit(status)
