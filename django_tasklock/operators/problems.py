"""One thing that the doctor finds wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Model

from .._values.lock_info import LockInfo
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
    command exit with 1.

    What it is about, None where it is not about such a thing: the ``lock``, by its name, and its
    ``store``; ``info``, the lock's holder as it was seen; the ``task``; the row, by its ``model``
    and ``pk``, and ``row`` itself where it was read. ``work`` and ``fence`` belong to a lost row;
    ``error`` is what was raised.
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
    store: str | None = None
    lock: str | None = None
    info: LockInfo | None = None
    task: str | None = None
    model: type[Model] | None = None
    row: Model | None = None

    @classmethod
    def worded(
        cls, kind: str, what: str, wording: Wording, values: Mapping[str, Any], **more: Any
    ) -> Problem:
        """Return the problem with the texts of ``wording``; ``more`` are its other fields."""
        message, hint = wording.filled(values)
        return cls(kind, what, message, hint, wording=wording, values=values, **more)

    @property
    def sendable(self) -> bool:
        """Whether the task of a lost row is to be sent again. Not while an operator holds its lock:
        it would be skipped, or wait for the end of the hold."""
        return self.kind == "lost work" and self.info is None

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
            "task": self.task,
            "pk": None if self.pk is None else str(self.pk),
            "model": None if self.model is None else self.model._meta.label,
            "store": self.store,
            "lock": self.lock,
        }
