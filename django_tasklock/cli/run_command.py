"""``manage.py locks run`` and ``locks lead``: a command under a lock."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from .._engine.cooling import Cooling, cooling_times
from .._engine.lease import Lease
from .._engine.service import locks
from .._engine.use import Use
from .._values import clock
from .._values.arguments import checked_ttl
from .._values.describe import printable
from ..exceptions import StoreUnavailable
from ..leader import wait_to_lead
from ..operators.holders import sentence
from .leased_group import LeasedGroup
from .verb import Verb, exit_status, lock_name, seconds

__all__ = ["HELD_ELSEWHERE", "LEAD", "LOST", "OUTAGE", "RUN", "lead_command", "run_command"]

# Exit statuses that are not the command's own. OUTAGE: the store did not answer, and nothing was
# run. HELD_ELSEWHERE: somebody else holds the lock, and nothing was run. LOST: the lock was lost
# while the command ran. In sysexits.h they are EX_UNAVAILABLE, EX_TEMPFAIL (try again later) and
# EX_NOPERM.
OUTAGE, HELD_ELSEWHERE, LOST = 69, 75, 77

LEADERS_TTL_SECONDS = 15.0
COOLING_OPTIONS = {
    "--hold-at-least": "the lock stays taken until so long after it was acquired, also if the "
    "command has ended before: longer than the clocks of two hosts differ",
    "--cooldown": "the lock stays taken for so long after the command has exited with 0",
    "--cooldown-after-error": "the lock stays taken for so long after the command has exited with "
    "another status",
}


def add_run_arguments(parser: CommandParser) -> None:
    """Add the lock, how to take it, and the command to run."""
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--ttl",
        type=float,
        metavar="SECONDS",
        help="of the lease, which is renewed while the command runs (default: the store's TTL)",
    )
    parser.add_argument(
        "--wait",
        type=float,
        nargs="?",
        default=0,
        metavar="SECONDS",
        help="how long to wait for a held lock; without a number: for ever (default: do not wait)",
    )
    parser.add_argument(
        "--conflict-exit-code",
        type=exit_status,
        default=HELD_ELSEWHERE,
        metavar="N",
        help="the exit status if somebody else holds the lock (default: %(default)s)",
    )
    parser.add_argument(
        "--kill-after",
        type=seconds,
        default=10.0,
        metavar="SECONDS",
        help="time from SIGTERM to SIGKILL when the lock is lost (default: %(default)g)",
    )
    for option, text in COOLING_OPTIONS.items():
        parser.add_argument(option, type=seconds, default=0.0, metavar="SECONDS", help=text)
    parser.add_argument("argv", nargs="+", metavar="COMMAND")


def add_lead_arguments(parser: CommandParser) -> None:
    """Add the lock, how long it lasts, and the command to run."""
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--ttl",
        type=float,
        default=LEADERS_TTL_SECONDS,
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


def run_command(command: BaseCommand, **options: Any) -> None:
    """Run the command under the lock, and exit with its status.

    Raises `SystemExit` with the command's own status, or 128 + the signal that ended it; and
    `CommandError` with the ``returncode`` `OUTAGE` or `LOST`, or that of ``--conflict-exit-code``.
    """
    group = LeasedGroup(options["kill_after"])
    with group.of(options["argv"]) as number:
        lease = _lease(options, number)
        try:
            status = group.run(lease)
            if lease._cooling is not None:
                lease._cooling.ended(failed=status != 0)
        finally:
            group.kill()
            kept = _release(command, lease)
    if not kept:
        # What ran without its lock is never reported as a success.
        raise CommandError(f"{lease.name} was lost while the command ran.", returncode=LOST)
    sys.exit(status)


def lead_command(command: BaseCommand, **options: Any) -> None:
    """Run the command whenever this process leads; exit with its status when it ends by itself.

    Raises `SystemExit` with the command's status, or 128 + the signal that ended it or this
    process; and `CommandError` for a wrong option.
    """
    name, argv = lock_name(options["name"]), options["argv"]
    try:
        ttl = checked_ttl(options["ttl"])
    except ValueError as error:
        raise CommandError(f"{error}.") from error
    kill_after = ttl / 3 if options["kill_after"] is None else options["kill_after"]
    if kill_after > ttl / 2:
        raise CommandError("--kill-after is at most half of --ttl.")
    service, task = locks.using(options["store"]), f"locks lead {os.path.basename(argv[0])}"
    while True:
        # The SIGKILL comes before the lease is over.
        group = LeasedGroup(kill_after, spare=kill_after + min(1.0, ttl / 10))
        use = Use(None)  # The lease lasts as long as this.
        with group.of(argv) as number:
            lease = wait_to_lead(service, name, ttl, task=task, use=use, group=number)
            try:
                status = group.run(lease)
            finally:
                group.kill()
                _release(command, lease)
        if group.end_signal is not None and group.stopped:
            sys.exit(128 + group.end_signal)
        if not group.stopped:
            sys.exit(status)


def _lease(options: dict[str, Any], group: int) -> Lease:
    program = os.path.basename(options["argv"][0])
    service = locks.using(options["store"])
    try:
        times = cooling_times(
            options["hold_at_least"], options["cooldown"], options["cooldown_after_error"]
        )
        if times is not None:
            times.check(service.store)
        won = service.try_acquire(
            options["name"],
            ttl=options["ttl"],
            wait=options["wait"],
            renew=True,
            task=f"locks run {program}",
            group=group,
        )
    except ValueError as error:
        raise CommandError(f"{error}.") from error
    except StoreUnavailable as error:
        raise CommandError(printable(error), returncode=OUTAGE) from error
    if isinstance(won, Lease):
        if times is not None:
            won._cooling = Cooling(times)
        return won
    code = options["conflict_exit_code"]
    if options["verbosity"] == 0:
        sys.exit(code)
    raise CommandError(f"{won.name}: {sentence(won)}", returncode=code)


def _release(command: BaseCommand, lease: Lease) -> bool:
    """Release the lease; return whether it was held to the end."""
    held = lease.held
    try:
        return lease.release()
    except StoreUnavailable as error:
        command.stderr.write(f"{printable(error)} The lock ends by itself.")
        return held and clock.now() < lease._deadline


RUN = Verb(
    "run",
    "Run a command under a lock: while it runs on one host, no other host runs it. If the lock "
    "is lost, the command and its process group get SIGTERM, and SIGKILL a little later. "
    "If this process is killed, they are killed too. Exits with the command's own "
    "status, or 128 + the signal that ended it. Other exit statuses: "
    f"{HELD_ELSEWHERE}: somebody else holds the lock; {OUTAGE}: the store did not answer; "
    f"{LOST}: the lock was lost while the command ran.",
    (
        "manage.py locks run nightly-report -- ./report.sh --mail",
        "0 3 * * *  manage.py locks run backup --conflict-exit-code 0 -v 0 -- /opt/backup",
        "manage.py locks run deploy --ttl 30 --wait 600 -- ./deploy.sh",
    ),
    add_run_arguments,
    run_command,
    (),
)
LEAD = Verb(
    "lead",
    "Run a command in one place: of all processes that lead under this name, on all hosts, one "
    "runs its command, and the others wait. If the leader is killed, its command and its process "
    "group are killed too, and another one leads: at once on the same machine, after "
    "the ttl elsewhere. If the lease cannot be renewed, they get SIGTERM, and SIGKILL before the "
    "lease is over; then this process waits again. "
    "Ends when the command ends by itself, with its status, or 128 + the signal that ended it.",
    (
        "manage.py locks lead beat -- celery -A project beat",
        "manage.py locks lead importer --ttl 60 --kill-after 20 -- ./follow-the-feed.sh",
    ),
    add_lead_arguments,
    lead_command,
    (),
)
