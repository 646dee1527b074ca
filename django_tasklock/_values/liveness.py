"""Whether the processes of many leases live, each process asked for once."""

from __future__ import annotations

from .owner import Owner

__all__ = ["Liveness"]


class Liveness:
    """What is known of the owners of one list; for one look only, as processes end.

    The locks of a site belong to few processes. To ask the kernel for each lock would cost most of
    the time of a long list.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], bool | None] = {}

    def of(self, owner: Owner) -> bool | None:
        """`Owner.alive`, as it was when this process was asked for first."""
        who = owner.pid, owner.start, owner.boot, owner.pidns, owner.group, owner.mark
        try:
            return self._known[who]
        except KeyError:
            self._known[who] = alive = owner.alive()
            return alive
