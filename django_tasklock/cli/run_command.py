"""``manage.py locks run``: a command under a lock."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from .._engine.cooling import Cooling, cooling_times
from .._engine.lease import Lease
from .._engine.service import locks
from .._values import clock
from .._values.describe import printable
from ..exceptions import StoreUnavailable
from ..operators.holders import held_by
from .leased_process import LeasedProcess
from .parsing import exit_status, seconds
from .verb import Verb

__all__ = ["HELD_ELSEWHERE", "LOST", "OUTAGE", "VERB", "release", "run_command"]

OUTAGE, HELD_ELSEWHERE, LOST = 69, 75, 77
"""Exit statuses that are not the command's own. OUTAGE: the store did not answer, and nothing was
run. HELD_ELSEWHERE: somebody else holds the lock, and nothing was run. LOST: the lock was lost
while the command ran. In sysexits.h they are EX_UNAVAILABLE, EX_TEMPFAIL (try again later) and
EX_NOPERM."""

COOLING_OPTIONS = {
    "--hold-at-least": "the lock stays taken until so long after it was acquired, also if the "
    "command has ended before: longer than the clocks of two hosts differ",
    "--cooldown": "the lock stays taken for so long after the command has exited with 0",
    "--cooldown-after-error": "the lock stays taken for so long after the command has exited with "
    "another status",
}


def add_arguments(parser: CommandParser) -> None:
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


def run_command(command: BaseCommand, **options: Any) -> None:
    """Run the command under the lock, and exit with its status.

    Raises `SystemExit` with the command's own status, or 128 + the signal that ended it; and
    `CommandError` with the ``returncode`` `OUTAGE` or `LOST`, or that of ``--conflict-exit-code``.
    """
    process = LeasedProcess(command, options["kill_after"])
    with process.signals(), process.guardian(options["argv"]) as group:
        lease = _lease(options, group)
        try:
            status = process.run(lease)
            if lease._cooling is not None:
                lease._cooling.ended(failed=status != 0)
        finally:
            process.end()
            kept = release(command, lease)
    if not kept:
        # What ran without its lock is never reported as a success.
        raise CommandError(f"{lease.name} was lost while the command ran.", returncode=LOST)
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
    raise CommandError(f"{won.name} {held_by(won)}.", returncode=code)


def release(command: BaseCommand, lease: Lease) -> bool:
    """Release the lease; return whether it was held to the end."""
    held = lease.held
    try:
        return lease.release()
    except StoreUnavailable as error:
        command.stderr.write(f"{printable(error)} The lock ends by itself.")
        return held and clock.now() < lease._deadline


VERB = Verb(
    "run",
    "Run a command under a lock: while it runs on one host, no other host runs it. If the lock "
    "is lost, the command and everything that it started get SIGTERM, and SIGKILL a little later. "
    "If this process is killed, they are killed too. Exits with the command's own "
    "status, or 128 + the signal that ended it. Other exit statuses: "
    f"{HELD_ELSEWHERE}: somebody else holds the lock; {OUTAGE}: the store did not answer; "
    f"{LOST}: the lock was lost while the command ran.",
    "  manage.py locks run nightly-report -- ./report.sh --mail\n"
    "  0 3 * * *  manage.py locks run backup --conflict-exit-code 0 -v 0 -- /opt/backup\n"
    "  manage.py locks run deploy --ttl 30 --wait 600 -- ./deploy.sh\n"
    "  manage.py locks run sync --cooldown 3600 --cooldown-after-error 60 -- ./sync.sh",
    add_arguments,
    run_command,
    (),
)
