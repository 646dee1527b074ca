"""The UPDATEs of a guard: each of one row, outside of transactions, on a connection that works."""

from __future__ import annotations

from typing import Any

from django.db import InterfaceError, OperationalError, connections
from django.db.models import Q

from ._compat.django_database import close_if_cut, is_in_atomic
from ._compat.django_updates import KeptUpdate, Make, is_plain_key, kept_update

__all__ = ["RowUpdates"]


class RowUpdates:
    """Carries out the UPDATEs of the guard of the model ``label``. Their SQL is built once."""

    def __init__(self, label: str, fence_field: str | None) -> None:
        self._label = label
        self._fence_field = fence_field
        self._kept: dict[tuple[object, ...], KeptUpdate | None] = {}

    def update(
        self,
        verb: str | None,
        using: str,
        make: Make,
        pk: Any,
        fence: int | None,
        *,
        ours: bool = True,
    ) -> bool:
        """Change the row, and return whether there was one.

        ``make(pk, fence)`` returns the rows and the changes. ``verb``: a name that means the same
        UPDATE each time, but for the key and the fence; None: it may be another one each time.

        A connection that was cut, before the UPDATE or in it, is replaced once. The UPDATE may
        have been carried out all the same: then the row shows the changes, and the fence. ``ours``:
        False if that would prove nothing, because others write the same.

        Raises `RuntimeError` inside ``atomic()``.
        """
        # Inside atomic() no other connection would see the change before the commit, and a rollback
        # would undo it although the work was done.
        if is_in_atomic(using):
            raise RuntimeError(
                f"the guard of {self._label} was used inside atomic(): its claim must be seen by "
                "other workers at once, and must not be rolled back. Move atomic() into the task."
            )
        try:
            return self._run(verb, using, make, pk, fence) > 0
        except (InterfaceError, OperationalError):
            if not close_if_cut(using):
                raise
        if self._run(verb, using, make, pk, fence) > 0:
            return True
        rows, changes = make(pk, fence)
        changed = Q(pk=pk) & Q(*changes.items())
        if self._fence_field and fence is not None:
            changed &= Q((self._fence_field, fence))
        return ours and rows.model._base_manager.using(using).filter(changed).exists()

    def _run(self, verb: str | None, using: str, make: Make, pk: Any, fence: int | None) -> int:
        if verb is not None and is_plain_key(pk):
            key = (verb, using, connections[using].vendor, type(pk), fence is None)
            try:
                kept = self._kept[key]
            except KeyError:
                kept = kept_update(make, using, type(pk), fenced=fence is not None)
                self._kept[key] = kept
            if kept is not None:
                return kept.run(using, pk, fence)
        rows, changes = make(pk, fence)
        number: int = rows.using(using).update(**changes)
        return number
