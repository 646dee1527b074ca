"""The keys of one store on Redis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from operator import attrgetter

from ..._values.arguments import is_name
from ..._values.interruptions import interrupts
from ..._values.lock_info import LockKeys
from ..._values.slots import LARGEST_SLOTS, base_of
from ...exceptions import InvalidLockConfig
from ..records import is_note


class Keys:
    """The names of the keys of one store.

    Each lock and each note has a key. Beside it a lock has a wait queue while somebody waits; the
    permits of one name have one together. `LockKeys` are those of a name. A store has five more:
    the index of its locks and that of the notes that it lists, by the time at which they end; the
    fences; the history; and the rare events of it. All but the locks' own keys contain a space,
    which no lock's name does.

    A KEY_FUNCTION may look at the thread, for its tenant. Then a name has a key for each tenant,
    and the indexes have the keys as well. The store's own keys are the same for all tenants.
    """

    def __init__(
        self, make_key: Callable[[str], str], prefix: str, alias: str, *, prepends: bool
    ) -> None:
        """Name the keys of a store.

        Args:
            make_key: the cache's own.
            prefix: the KEY_PREFIX of the store.
            alias: of the store.
            prepends: ``make_key`` puts the same text before each key, in every thread.

        Raises `InvalidLockConfig`.
        """
        self._make_key = make_key
        self._alias = alias
        self._lock_prefix = f"{prefix}:" if prefix else ""
        # Whether a name has the same key in all threads.
        self._of_all = prepends
        # Without a prefix, a key that begins with a space is that of a note.
        own = [f"{prefix or '-'} {what}" for what in ("index", "listed", "fences", "history")]
        made = map(make_key, own) if prepends else _without_tenant(make_key, own)
        self.index, self.listed, self.fences, self.history = (key.encode() for key in made)
        self.rare = self.history + b" rare"
        # What the names of the channels begin with.
        self.channels = self.index + b":"

    def of(self, name: str, key: bytes | None = None) -> LockKeys:
        """The keys of a lock or a note: those that the name has, or as this thread makes them.

        ``key``: that of the lock, where an index has it.
        """
        # What a handle says, which anybody may have written, counts only where keys differ.
        if isinstance(name, LockKeys) and name.alias == self._alias and name.of_all == self._of_all:
            if name.of_all or name.known_permits or "#" not in name:
                return name
            key = name.key
        key = self._key(name) if key is None else key
        known = b"" if self._of_all or "#" not in name else self._queue_of_permits(name, key)
        return LockKeys(name, self._alias, key, self._of_all, known)

    def of_question(self, locks: Sequence[LockKeys], slots: int | None) -> list[bytes]:
        """The first KEYS of acquire.lua and leave.lua; with ``slots`` the locks are permits."""
        keys = map(attrgetter("key"), locks)
        if slots is None:
            return [self.index, self.fences, locks[0].queue, *keys]
        return [self.index, self.fences, locks[0].permits, *keys, locks[0].gate]

    def name_of(self, member: bytes) -> str | None:
        """The name in an index, with the key that is there; None for what cannot be one."""
        try:
            name, line, key = member.decode().partition("\n")
        except UnicodeDecodeError:
            return None
        if not (is_name(name) or (is_note(name) and name.isprintable())):
            return None
        if self._of_all:
            return None if line else name
        return self.of(name, key.encode()) if key else None

    def _key(self, name: str) -> bytes:
        """The key that this thread makes."""
        return self._make_key(self._lock_prefix + name).encode()

    def _queue_of_permits(self, name: str, key: bytes) -> bytes:
        base, queue = base_of(name, LARGEST_SLOTS), key + b" queue"
        if self._key(name) == key:
            return self._key(base) + b" queue"
        # Another tenant is current here. The name within the key leads to the queue of its own. No
        # digest does, and so nothing is handed over: the waiters ask again.
        before, found, behind = queue.rpartition(name.encode())
        return before + base.encode() + behind if found else queue


def fence_of(text: bytes | None) -> int | None:
    """A fence that Redis has; None for what somebody else wrote there."""
    return int(text) if text is not None and text.isdigit() and len(text) <= 16 else None


def _without_tenant(make_key: Callable[[str], str], keys: list[str]) -> list[str]:
    """The keys as a new thread makes them: all processes have the same ones, whatever is current
    where a store is made. Raises `InvalidLockConfig`."""
    with ThreadPoolExecutor(1) as thread:
        try:
            return [thread.submit(Context().run, make_key, key).result() for key in keys]
        except Exception as error:
            if interrupts(error):
                raise
            raise InvalidLockConfig(
                "the cache's KEY_FUNCTION must also answer in a new thread, where no tenant is "
                f"current: it raises {type(error).__name__}: {error}"
            ) from error
