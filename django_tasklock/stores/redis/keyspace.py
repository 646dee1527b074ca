"""The keys of one store: their names, and what type each must have."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context

from ..._values.arguments import is_name
from ..._values.lock_info import Keyed
from ...exceptions import InvalidLockConfig

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

    A KEY_FUNCTION may look at the thread, for its tenant. Then a name has a key for each tenant. So
    names are made `Keyed` where they are first used, and the indexes have the keys as well. The
    store's own keys are the same for all tenants.
    """

    prepends: bool
    """whether no KEY_FUNCTION is asked, so that every thread makes the same keys"""

    def __init__(
        self,
        make_key: Callable[[str], str],
        prefix: str,
        alias: str = "",
        *,
        prepends: bool = False,
    ) -> None:
        """``make_key`` is the cache's own; ``prefix`` is the KEY_PREFIX of the store ``alias``.
        ``prepends``: ``make_key`` puts the same text before each key, and need not be asked each
        time."""
        self._make_key = make_key
        self._alias = alias
        self.prepends = prepends
        self._prefix = prefix
        self._lock_prefix = f"{prefix}:" if prefix else ""
        self._head = make_key(self._lock_prefix) if prepends else None
        """what comes before the name in a lock's key"""
        own = [f"{prefix} {what}" for what in ("index", "fences", "reserved", "history")]
        made = map(make_key, own) if prepends else _without_tenant(make_key, own)
        self.index, self.fences, self.reserved, self.history = (key.encode() for key in made)
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
        return self._kept(name) or self._make_key(self._lock_prefix + name)

    def keyed(self, name: str) -> str:
        """The name of a lock, with its key if that may depend on the thread."""
        if self.prepends or self._kept(name):
            return name
        return Keyed.of(name, self.key(name), self._alias)

    def member(self, name: str) -> str:
        """What the index and the fences have for a lock: its name, and its key if other tenants
        have another key for that name."""
        return name if self.prepends else f"{name} {self.key(name)}"

    def name_of(self, member: bytes) -> str | None:
        """The name of a lock in the index; None for what cannot be one."""
        try:
            name, space, key = member.decode().partition(" ")
        except UnicodeDecodeError:
            return None
        if not is_name(name) or not (not space if self.prepends else key):
            return None
        return name if self.prepends else Keyed.of(name, key, self._alias)

    def keys(self, name: str) -> tuple[bytes, bytes, bytes, bytes]:
        """What most scripts need for a lock: its key, the index, the fences, its wait queue."""
        key = self.key(name).encode()
        return key, self.index, self.fences, key + QUEUE

    def cleared_key(self, name: str) -> bytes:
        """The key for the digest of the lease of this lock that was cleared last."""
        return self.key(name).encode() + CLEARED

    def note_key(self, key: str) -> bytes:
        """The key of a note or a reservation."""
        return (self._kept(key) or self._make_key(f"{self._prefix} note {key}")).encode()

    def keyed_note(self, key: str) -> str:
        """The key of a note, with its physical key if that may depend on the thread."""
        if self.prepends or self._kept(key):
            return key
        return Keyed.of(key, self.note_key(key).decode(), self._alias)

    def note_member(self, key: str) -> str:
        """`member`, of a reservation."""
        return key if self.prepends else f"{key}\n{self.note_key(key).decode()}"

    def note_of(self, member: bytes) -> str | None:
        """The key of a reservation in the index; None for what was not written by us."""
        try:
            text = member.decode()
        except UnicodeDecodeError:
            return None
        return text if self.prepends else Keyed.of(*text.partition("\n")[::2], self._alias)

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

    def _kept(self, name: str) -> str | None:
        return name.key if isinstance(name, Keyed) and name.alias == self._alias else None


def _without_tenant(make_key: Callable[[str], str], keys: list[str]) -> list[str]:
    """The keys as a new thread makes them: all processes have the same ones, whatever is current
    where a store is made. Raises `InvalidLockConfig`."""
    with ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(Context().run, lambda: [*map(make_key, keys)]).result()
        except Exception as error:
            raise InvalidLockConfig(
                "the cache's KEY_FUNCTION must also answer in a new thread, where no tenant is "
                f"current: it raises {type(error).__name__}: {error}"
            ) from error
