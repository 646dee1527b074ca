"""``manage.py locks clear``: locks removed by force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from .._engine.service import locks
from .._values.describe import printable
from .._values.lock_info import LockInfo
from ..operators.clearing import Outcome, clear_all
from ..operators.holders import Holder, holder_of, meaning, sentence, who
from .asking import DRY_RUN, Report, ask
from .list_locks import matching
from .queued import clear_queued
from .verb import Verb, lock_name, user

__all__ = ["VERB", "clear_locks"]

MOST_SHOWN = 20  # locks before the question


def add_arguments(parser: CommandParser) -> None:
    """Add which locks to clear, and how."""
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--prefix", metavar="P", help="every lock whose name begins with P")
    parser.add_argument("--task", metavar="TASK", help="every lock of this task (with * and ?)")
    parser.add_argument(
        "--owner-gone",
        action="store_true",
        help="every lock whose process ran on this machine and is gone",
    )
    parser.add_argument("--all", action="store_true", help="every lock")
    parser.add_argument(
        "--queued",
        action="store_true",
        help="reservations in the queue (unique_while) instead of locks: the next call is sent, "
        "even if another message of the same job still waits",
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be cleared")
    parser.add_argument(
        "--noinput",
        "--no-input",
        action="store_false",
        dest="interactive",
        help="do not ask before clearing",
    )


def clear_locks(command: BaseCommand, **options: Any) -> None:
    """Clear the chosen locks, each only while the lease that was seen still holds it.

    Raises `CommandError` for options that choose nothing or too much, for a no, for a lock that
    was named and is not locked, and for one that changed hands; `ListingNotSupported` and
    `StoreUnavailable`.
    """
    prefix, task = options["prefix"], options["task"]
    ways = [bool(options["names"]), prefix is not None, task is not None, options["owner_gone"]]
    if sum([*ways, options["all"]]) != 1:
        raise CommandError(
            "Say which locks, in one of these ways: NAME..., or --prefix P, or --task T, or "
            "--owner-gone, or --all."
        )
    if prefix == "":
        raise CommandError(
            "An empty --prefix would clear every lock. To clear every lock, use --all."
        )
    names = list(dict.fromkeys(map(lock_name, options["names"])))
    service, by = locks.using(options["store"]), f"{user()} (locks clear)"
    if options["queued"]:
        clear_queued(command, service.store, names, options, by)
        return
    if names:
        found = [info for info in service.store.get_many(names) if info is not None]
    else:
        found = matching(service, prefix or "", task)
        if options["owner_gone"]:
            found = [info for info in found if holder_of(info) is Holder.GONE]
    if found and (options["interactive"] or options["dry_run"]):
        ask(command, _meanings(found), "lock", len(found), only_show=options["dry_run"])
    # There may be locks whose owner nobody here can judge.
    nothing = "No lock's owner is known to be gone." if options["owner_gone"] else "No locks."
    report = Report(command, options["format"], _held_by, nothing=nothing, not_there="not locked")
    with report:
        if options["dry_run"]:
            for info in found:
                report.add(info.name, DRY_RUN, info)
        else:
            for info, outcome in clear_all(service, found, by=by):
                report.add(info.name, outcome.value, info)
        for name in names:
            if all(info.name != name for info in found):
                report.add(name, Outcome.NOT_LOCKED.value, None)
    report.fail_unless_done(named=bool(names))


def _meanings(found: Sequence[LockInfo]) -> str:
    """What it means to clear each of the locks, the unsafe ones first."""
    means = sorted(((info, meaning(info)) for info in found), key=lambda each: each[1].safe)
    lines = [
        f"{printable(info.name)}: {sentence(info)}\n    {text}"
        for info, (_, text) in means[:MOST_SHOWN]
    ]
    if len(means) > MOST_SHOWN:
        lines.append(f"and {len(means) - MOST_SHOWN:,} more.")
    return "\n".join(lines)


def _held_by(info: LockInfo) -> str:
    cooling = ", cooling down" if info.cooling else ""
    return f"held by {who(info.owner) if info.token is None else info.owner}{cooling}"


VERB = Verb(
    "clear",
    "Remove locks by force. It asks first, and says what that means. The next waiter may take such "
    "a lock at once, even while its holder still works. Exits 1 if a named lock is not locked.",
    (
        "manage.py locks clear video:123 video:124",
        "manage.py locks clear --prefix video: --dry-run",
        "manage.py locks clear --owner-gone --noinput",
        "manage.py locks clear --queued --task videos.tasks.process",
    ),
    add_arguments,
    clear_locks,
)
