"""What ``manage.py locks`` would say of a lock."""

from __future__ import annotations

from collections.abc import Sequence

from ..cli.show import as_line_of_waiters, as_sheet
from ..describe import command_line, printable
from ..lease import LockInfo
from ..owner import Owner

__all__ = ["commands_on"]


def commands_on(info: LockInfo, waiting: Sequence[Owner] = ()) -> list[tuple[str, str]]:
    """Command lines, and what each would print.

    Without the token: who may only look gets no proof of a lease.
    """
    sheet = "\n".join(line for line in as_sheet(info).splitlines() if not line.startswith("token:"))
    if waiting:
        sheet += f"\n\n{as_line_of_waiters(waiting)}"
    held = "other code" if info.token is None else printable(info.owner)
    return [
        (command_line("show", info.name, store=info.store), sheet),
        (
            command_line("clear", info.name, store=info.store, options="--dry-run"),
            f"would clear {printable(info.name)}, held by {held}",
        ),
    ]
