"""Notes and reservations in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..._compat.native_threads import NativeRLock, new_rlock
from ..._values.lock_info import LockInfo
from ...conf import StoreSettings
from ..base import LISTED_KEY_PREFIX, BaseStore, Note, Reserved
from .ending import Ending, Expiring

__all__ = ["MemoryNotes"]


@dataclass(slots=True)
class _Noted:
    text: str
    ending: Ending
    reserved: bool
    """whether it is a reservation"""


class MemoryNotes(BaseStore):
    """The part of `MemoryStore` that is not about leases."""

    # Reentrant: a signal handler may run inside of a call and take a lock too. Native: the renewal
    # thread and greenlets share it, and no greenlet is switched to while it is held.
    guard: ClassVar[NativeRLock] = new_rlock()
    """held while anything of a memory store is read or changed, and never longer"""

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self._notes: Expiring[_Noted] = Expiring()

    def get_note(self, key: str) -> str | None:
        with self.guard:
            noted = self._notes.get(key)
            return None if noted is None else noted.text

    def set_note(self, note: Note) -> None:
        with self.guard:
            if note.text:
                self._notes.put(note.key, _Noted(note.text, Ending.after(note.ttl), False))
            else:
                self._notes.remove(note.key)

    def reserve(
        self,
        key: str,
        text: str,
        ttl: float,
        *,
        over: str = "",
        unless_held: str | None = None,
    ) -> str | LockInfo | None:
        with self.guard:
            there = self.get_note(key)
            if there == over:
                there = None
            if there not in (None, text):
                return there
            if there is None and unless_held is not None:
                holder = self.get(unless_held)
                if holder is not None:
                    return holder
            self._notes.put(key, _Noted(text, Ending.after(ttl), True))
            return None

    def unreserve(self, key: str, text: str) -> bool:
        with self.guard:
            if self.get_note(key) != text:
                return False
            self._notes.remove(key)
            return True

    def reservations(self, prefix: str = "", limit: int | None = None) -> list[Reserved]:
        start = LISTED_KEY_PREFIX + prefix
        with self.guard:
            found = [
                Reserved(key, noted.text, noted.ending.left())
                for key in self._notes
                if key.startswith(start)
                and (noted := self._notes.get(key)) is not None
                and noted.reserved
            ]
        found.sort(key=lambda reserved: reserved.ttl or 0.0)
        return found[:limit]
