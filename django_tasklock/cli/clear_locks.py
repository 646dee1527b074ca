"""``manage.py locks clear``: locks removed by force."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from .._engine.service import LockService, locks
from .._values.describe import printable
from .._values.keyed import key_of
from .._values.lock_info import LockInfo
from ..exceptions import StoreUnavailable
from ..operators.clearing import LOCKS_PER_CLEAR, Outcome, Seen, clear_all_seen
from .asking import ask, interrupted
from .list_queued import WOULD_CLEAR, clear_queued
from .meaning_table import meaning_table
from .parsing import lock_name
from .select import chosen
from .tables import as_json
from .verb import Verb

__all__ = ["VERB", "clear_locks"]

BY = "manage.py locks clear"
_everything: dict[str, Any] = {
    "prefix": "", "task": None, "owner": None, "expiring": None, "limit": None, "sort": "ttl",
    "scan": False,
}  # fmt: skip


def add_arguments(parser: CommandParser) -> None:
    """Add which locks to clear, and how."""
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--prefix", metavar="P", help="every lock whose name begins with P; asks first"
    )
    parser.add_argument(
        "--task", metavar="TASK", help="every lock of this task (with * and ?); asks first"
    )
    parser.add_argument(
        "--owner-gone",
        action="store_true",
        help="every lock whose process ran on this machine and is gone; asks first",
    )
    parser.add_argument("--all", action="store_true", help="every lock; asks first")
    parser.add_argument(
        "--queued",
        action="store_true",
        help="reservations in the queue (unique_while) instead of locks: the next call is sent, "
        "even if another message of the same job still waits",
    )
    parser.add_argument("--dry-run", action="store_true", help="only print what would be cleared")
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
    names, prefix, task = options["names"], options["prefix"], options["task"]
    ways = [bool(names), prefix is not None, task is not None, options["owner_gone"]]
    if sum([*ways, options["all"]]) != 1:
        raise CommandError(
            "Say which locks, in one of these ways: NAME..., or --prefix P, or --task T, or "
            "--owner-gone, or --all."
        )
    if prefix == "":
        raise CommandError(
            "An empty --prefix would clear every lock. To clear every lock, use --all."
        )
    service = locks.using(options["store"])
    names = list(dict.fromkeys(map(lock_name, names)))
    if options["queued"]:
        clear_queued(command, service.store, names, options)
        return
    if names:
        seen = list(zip(names, service.store.get_many(names), strict=True))
    else:
        found = chosen(service, _everything | {"prefix": prefix or "", "task": task})
        if options["owner_gone"]:
            found = [info for info in found if info.owner.alive() is False]
        # A list that is read in pages may show a lock twice that changed between two of them.
        found = list({key_of(info.name): info for info in found}.values())
        seen = [(info.name, info) for info in found]
        if seen and options["interactive"] and not options["dry_run"]:
            which = "this lock" if len(seen) == 1 else f"these {len(seen)} locks"
            ask(command, meaning_table(command, found), which)
    outcomes: list[tuple[str, LockInfo | None, str]] = []
    try:
        for part in _outcomes(service, seen, dry_run=options["dry_run"]):
            outcomes += part
    except (StoreUnavailable, KeyboardInterrupt) as error:
        if outcomes:  # Those that were cleared before that.
            _report(command, outcomes, options)
        if isinstance(error, KeyboardInterrupt):
            raise interrupted(reported=bool(outcomes)) from None
        raise
    _report(command, outcomes, options)
    _fail_unless_done(outcomes, named=bool(names))


def _outcomes(
    service: LockService, seen: Sequence[tuple[str, LockInfo | None]], *, dry_run: bool
) -> Iterator[list[tuple[str, LockInfo | None, str]]]:
    """Clear the locks, in parts that are cleared together. Yield the outcomes of each part."""
    for start in range(0, len(seen), LOCKS_PER_CLEAR):
        part = seen[start : start + LOCKS_PER_CLEAR]
        held = [Seen(info.name, info.token, info.digest) for _, info in part if info is not None]
        done: dict[str, str] = {}
        if dry_run:
            done = {key_of(each.name): WOULD_CLEAR for each in held}
        elif held:
            cleared = clear_all_seen(service, held, by=BY)
            done = {key_of(each.name): each.outcome.value for each in cleared}
        yield [
            (name, info, done[key_of(info.name)] if info else Outcome.NOT_LOCKED.value)
            for name, info in part
        ]


def _report(
    command: BaseCommand,
    outcomes: Sequence[tuple[str, LockInfo | None, str]],
    options: dict[str, Any],
) -> None:
    if options["format"] == "json":
        command.stdout.write(
            as_json(
                {"name": name, "outcome": outcome, "was": info.as_json() if info else None}
                for name, info, outcome in outcomes
            )
        )
    elif not outcomes and options["owner_gone"]:
        # There may be locks whose owner nobody here can judge.
        command.stdout.write("No lock's owner is known to be gone.")
    elif not outcomes:
        command.stdout.write("No locks.")
    else:
        for name, info, outcome in outcomes:
            if info is not None:
                held = "other code" if info.token is None else printable(info.owner)
                held += ", cooling down" if info.cooling else ""
                left_alone = " (left alone)" if outcome == Outcome.CHANGED_HANDS.value else ""
                command.stdout.write(f"{outcome} {printable(name)}, held by {held}{left_alone}")


def _fail_unless_done(outcomes: Sequence[tuple[str, LockInfo | None, str]], *, named: bool) -> None:
    """Exit 1 for a lock that was named and is not locked, and for one that is still held."""
    not_locked = [name for name, _, outcome in outcomes if outcome == Outcome.NOT_LOCKED.value]
    changed = [name for name, _, outcome in outcomes if outcome == Outcome.CHANGED_HANDS.value]
    problems = []
    if named and not_locked:
        problems.append(f"{', '.join(map(printable, not_locked))} {_is(not_locked)} not locked.")
    if changed:
        problems.append(
            f"{', '.join(map(printable, changed))} changed hands meanwhile, left alone."
        )
    if problems:
        raise CommandError(" ".join(problems))


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


VERB = Verb(
    "clear",
    "Remove locks by force. The next waiter may take such a lock at once, even while its "
    "holder still works. Exits 1 if a named lock is not locked.",
    "  manage.py locks clear video:123 video:124\n"
    "  manage.py locks clear --prefix video: --dry-run\n"
    "  manage.py locks clear --owner-gone\n"
    "  manage.py locks clear --queued --task videos.tasks.process\n"
    "  manage.py locks clear --all --noinput",
    add_arguments,
    clear_locks,
)
