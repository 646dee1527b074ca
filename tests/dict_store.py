"""The least that a store can be: put, get and list, over a dict. The docs show it
(docs/howto/store-of-your-own.md)."""

import threading
import time
from collections.abc import Iterator, Sequence
from math import inf

from django_tasklock.conf import StoreSettings
from django_tasklock.stores.base import BaseStore
from django_tasklock.stores.records import Change, Done, Entry, Held, fits, is_note, is_there


class DictStore(BaseStore):
    """Locks in a dict: the entry under a name, and when it ends."""

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self._guard = threading.RLock()
        self._kept: dict[str, tuple[Entry, float]] = {}
        self._last_fence = 0

    def put(self, changes: Sequence[Change], least_fence: int = 0) -> Done:
        names = [change.name for change in changes]
        with self._guard:
            made = all(map(fits, changes, self.get(names)))
            if made:
                for change in changes:
                    self._make(change, least_fence)
            return Done(made, self.get(names))

    def get(self, names: Sequence[str]) -> list[Entry | None]:
        with self._guard:
            return [self._there(name) for name in names]

    def list(self, prefix: str = "") -> Iterator[Entry]:
        with self._guard:
            # A prefix that begins with a space asks for notes, any other one for locks.
            names = [name for name in self._kept if is_note(name) == is_note(prefix)]
            found = [self._there(name) for name in names if name.startswith(prefix)]
        ends = [(entry.left or 0.0, entry.name, entry) for entry in found if entry is not None]
        return (entry for _, _, entry in sorted(ends))

    def _there(self, name: str) -> Entry | None:
        entry, ends = self._kept.get(name, (None, 0.0))
        left = ends - time.monotonic()
        if entry is not None and left > 0:
            return entry._replace(left=left)
        self._kept.pop(name, None)
        return None

    def _make(self, change: Change, least_fence: int) -> None:
        name, expect, record, ttl = change
        entry = self._there(name)
        if record is None:
            self._kept.pop(name, None)
        elif not isinstance(record, str):
            if entry is None or not (isinstance(expect, Held) or is_there(change, entry)):
                entry = Entry(name, record, ttl, self._last_fence + 1)  # A new lease.
            # What replaces another record has the fence of that: it is the same lease.
            fence = max(entry.fence or 0, least_fence)
            self._last_fence = max(self._last_fence, fence)
            entry = entry._replace(record=record, fence=fence)
            self._kept[name] = entry, time.monotonic() + (inf if ttl is None else ttl)
        elif entry is not None and ttl is not None:  # KEEP
            self._kept[name] = entry, time.monotonic() + ttl
