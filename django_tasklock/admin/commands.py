"""What ``manage.py locks`` would print about a lock."""

from __future__ import annotations

from collections.abc import Sequence

from .._values.describe import printable
from .._values.lock_info import LockInfo
from .._values.owner import Owner
from ..cli.tables import as_sheet, as_waiter_lines
from ..operators.hints import command_line

__all__ = ["commands_on"]


def commands_on(info: LockInfo, waiting: Sequence[Owner] = ()) -> list[tuple[str, str]]:
    """Return command lines, and what each would print, for a lock and its ``waiting`` owners.

    The token is left out: a user who may only look gets no proof of a lease.
    """
    sheet = "\n".join(line for line in as_sheet(info).splitlines() if not line.startswith("token:"))
    if waiting:
        sheet += f"\n\n{as_waiter_lines(waiting)}"
    held = "other code" if info.token is None else printable(info.owner)
    return [
        (command_line("show", info.name, store=info.store), sheet),
        (
            command_line("clear", info.name, store=info.store, options="--dry-run"),
            f"would clear {printable(info.name)}, held by {held}",
        ),
    ]
