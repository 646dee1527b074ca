"""The least that a store can be: put, get and list, over a dict. The docs show it
(docs/howto/store-of-your-own.md)."""

import threading
import time
from collections.abc import Iterator, Sequence
from itertools import count

from django_tasklock.conf import StoreSettings
from django_tasklock.stores.base import BaseStore
from django_tasklock.stores.records import Change, Done, Entry, after, fits, is_note, left_of


class DictStore(BaseStore):
    """Locks in a dict: the entry under a name, and when it ends."""

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self._guard = threading.RLock()
        self._fences = count(1)
        self._kept: dict[str, tuple[Entry, float]] = {}

    def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
        names = [change.name for change in changes]
        with self._guard:
            there = self.get(names)
            if not all(map(fits, changes, there)):
                return Done(False, there)
            for change, entry in zip(changes, there, strict=True):
                new = after(change, entry, next(self._fences))
                if new is None:
                    self._kept.pop(change.name, None)
                else:
                    self._kept[change.name] = new, time.monotonic() + left_of(new)
            return Done(True, self.get(names))

    def get(self, names: Sequence[str]) -> list[Entry | None]:
        with self._guard:
            return [self._there(name) for name in names]

    def list(self, prefix: str = "") -> Iterator[Entry]:
        # A prefix that begins with a space asks for notes, any other one for locks.
        names = [name for name in [*self._kept] if is_note(name) == is_note(prefix)]
        found = self.get([name for name in names if name.startswith(prefix)])
        return iter(sorted(filter(None, found), key=left_of))

    def _there(self, name: str) -> Entry | None:
        entry, ends = self._kept.get(name, (None, 0.0))
        left = ends - time.monotonic()
        return entry._replace(left=left) if entry and left > 0 else None
