"""What ``manage.py locks`` would say of a lock."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ..cli.show import as_line_of_waiters, as_sheet
from ..conf import DEFAULT_ALIAS
from ..describe import printable
from ..lease import LockInfo
from ..owner import Owner

__all__ = ["commands_on"]


def commands_on(info: LockInfo, waiting: Sequence[Owner] = ()) -> list[tuple[str, str]]:
    """Command lines, and what each would print.

    Without the token: who may only look gets no proof of a lease.
    """
    name = shlex.quote(printable(info.name))
    store = "" if info.store == DEFAULT_ALIAS else f" --store {shlex.quote(info.store)}"
    sheet = "\n".join(line for line in as_sheet(info).splitlines() if not line.startswith("token:"))
    if waiting:
        sheet += f"\n\n{as_line_of_waiters(waiting)}"
    held = "other code" if info.token is None else printable(info.owner)
    return [
        (f"manage.py locks show {name}{store}", sheet),
        (
            f"manage.py locks clear {name}{store} --dry-run",
            f"would clear {printable(info.name)}, held by {held}",
        ),
    ]
