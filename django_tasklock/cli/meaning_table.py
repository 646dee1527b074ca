"""What a clear would mean, as a table before the question."""

from __future__ import annotations

from collections.abc import Sequence

from django.core.management.base import BaseCommand

from .._values.describe import duration, place, printable
from .._values.lock_info import LockInfo
from ..operators.meaning import Meaning, meanings
from ..operators.wording import HOLDERS, NOTICES
from .columns import NOTHING, as_lines
from .tables import LOCK_COLUMNS, cells_of

__all__ = ["meaning_table"]

COLUMNS = (*LOCK_COLUMNS, "WAITING", "NEXT", "CLEAR IS", "WHY")


def meaning_table(command: BaseCommand, infos: Sequence[LockInfo]) -> str:
    """Return the locks with what it means to clear each; those that are not safe to clear are red
    on a terminal. Raises `StoreUnavailable`."""
    found = meanings(infos)
    rows = [_row(info, meaning) for info, meaning in zip(infos, found, strict=True)]
    header, *lines = as_lines(COLUMNS, rows).split("\n")
    if command.stderr.isatty():
        lines = [
            line if meaning.safe else command.style.ERROR(line)
            for line, meaning in zip(lines, found, strict=True)
        ]
    unsafe = sum(not meaning.safe for meaning in found)
    summary = f"Not safe to clear: {unsafe} of {len(found)}." if unsafe else "All safe to clear."
    return "\n".join([header, *lines, summary])


def _row(info: LockInfo, meaning: Meaning) -> tuple[str, ...]:
    why = HOLDERS[meaning.holder]
    if notice := NOTICES[meaning.notice]:
        why += " " + notice % {"duration": duration(meaning.seconds or 0)}
    following = meaning.next
    return (
        *cells_of(info),
        NOTHING if meaning.waiting is None else str(meaning.waiting),
        printable(place(following)) if following else NOTHING,
        "safe" if meaning.safe else "NOT SAFE",
        why,
    )
