"""The keys of one store: their names, and what type each must have."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Keyspace"]

QUEUE = b" queue"
"""the suffix of a lock's key for its wait queue"""
CLEARED = b" cleared"
"""the suffix of a lock's key for the digest of the lease that was cleared last"""
TYPES_BY_SUFFIX = {QUEUE: b"zset", CLEARED: b"string"}


class Keyspace:
    """The keys of one store.

    Each lock has a key, its wait queue another one while somebody waits. Beside the locks a store
    has four keys: the index (the locks' names by expiry), the fences, the reservations' keys by
    expiry, and the history. All but the locks' own keys contain a space, which no lock's name does.
    """

    def __init__(
        self, make_key: Callable[[str], str], prefix: str, *, prepends: bool = False
    ) -> None:
        """``make_key`` is the cache's own; ``prefix`` is the store's KEY_PREFIX. ``prepends``:
        ``make_key`` puts the same text before each key, and need not be asked each time."""
        self._make_key = make_key
        self._prefix = prefix
        self._lock_prefix = f"{prefix}:" if prefix else ""
        self._head = make_key(self._lock_prefix) if prepends else None
        """what comes before the name in a lock's key"""
        self.index = make_key(f"{prefix} index").encode()
        self.fences = make_key(f"{prefix} fences").encode()
        self.reserved = make_key(f"{prefix} reserved").encode()
        self.history = make_key(f"{prefix} history").encode()
        self.channels = self.index + b":"
        """what the names of the channels begin with; notify_waiters.lua has it too"""
        self._note_prefix = self.note_key("")
        self._types = {
            self.index: b"zset", self.reserved: b"zset", self.fences: b"hash",
            self.history: b"stream",
        }  # fmt: skip

    def key(self, name: str) -> str:
        """The key of a lock."""
        if self._head is not None:
            return self._head + name
        return self._make_key(self._lock_prefix + name)

    def keys(self, name: str) -> tuple[bytes, bytes, bytes, bytes]:
        """What most scripts need for a lock: its key, the index, the fences, its wait queue."""
        key = self.key(name).encode()
        return key, self.index, self.fences, key + QUEUE

    def cleared_key(self, name: str) -> bytes:
        """The key for the digest of the lease of this lock that was cleared last."""
        return self.key(name).encode() + CLEARED

    def note_key(self, key: str) -> bytes:
        """The key of a note or a reservation."""
        return self._make_key(f"{self._prefix} note {key}").encode()

    def note_keys(self, key: str) -> tuple[bytes, bytes]:
        """What the scripts need for a reservation: its key, and the index of reservations."""
        return self.note_key(key), self.reserved

    def type_of(self, key: bytes) -> bytes | None:
        """The Redis type that a key beside the locks must have; None for all other keys."""
        if key in self._types:
            return self._types[key]
        if key.startswith(self._note_prefix):
            return None  # It may end in any word.
        return next((kind for end, kind in TYPES_BY_SUFFIX.items() if key.endswith(end)), None)

    def tells_locks_apart(self) -> bool:
        """Whether a key shows that it is a lock's, and not another key of the cache."""
        return bool(self._prefix) and self.key("x").startswith(self.key(""))
