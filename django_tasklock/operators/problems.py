"""One thing that the doctor finds wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..exceptions import ListingNotSupported, StoreUnavailable
from .wording import Wording
from .work import Work

__all__ = ["Problem"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    ``kind`` is a key of `wording.KINDS`: "unknown" is for rows whose locks' names are not known,
    and for tasks that cannot be imported. ``what`` names the row, lock, store or check.
    ``message`` and ``hint`` are the command's texts; ``wording`` and ``values`` are what they were
    made of, None for a text that comes from a check or an error. ``serious`` problems make the
    command exit with 1. ``work``, ``pk`` and ``fence`` say which row was lost; ``error`` is what
    was raised.
    """

    kind: str
    what: str
    message: str
    hint: str = ""
    serious: bool = True
    wording: Wording | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    work: Work | None = None
    pk: Any = None
    fence: int | None = None
    error: StoreUnavailable | ListingNotSupported | ImportError | None = None

    @classmethod
    def worded(
        cls, kind: str, what: str, wording: Wording, values: Mapping[str, Any], **more: Any
    ) -> Problem:
        """Return the problem with the texts of ``wording``; ``more`` are its other fields."""
        message, hint = wording.filled(values)
        return cls(kind, what, message, hint, wording=wording, values=values, **more)

    @property
    def command(self) -> str:
        """The command line that the hint names; "" where it names none."""
        return str(self.values.get("command", ""))

    def as_json(self) -> dict[str, Any]:
        """Return the fields that ``locks doctor --format json`` prints, as JSON-able values."""
        return {
            "kind": self.kind,
            "what": self.what,
            "message": self.message,
            "hint": self.hint,
            "serious": self.serious,
            "task": self.work.task if self.work else None,
            "pk": None if self.pk is None else str(self.pk),
        }
