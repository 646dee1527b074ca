"""The keys of one store on Redis."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context

from ..._values.arguments import is_name
from ..._values.interruptions import interrupts
from ..._values.lock_info import Keyed
from ..._values.slots import LARGEST_SLOTS, base_of
from ...exceptions import InvalidLockConfig
from ..records import is_note


class Keys:
    """The names of the keys of one store.

    Each lock and each note has a key. Beside it a lock has a wait queue while somebody waits; the
    permits of one name have one together. A store has four more keys: the index of its locks and
    that of the notes that it lists, by the time at which they end; the fences; and the history.
    All but the locks' own keys contain a space, which no lock's name does.

    A KEY_FUNCTION may look at the thread, for its tenant. Then a name has a key for each tenant. So
    names are made `Keyed` where they are first used, and the indexes have the keys as well. The
    store's own keys are the same for all tenants.
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
        # What comes before the name in a key; None: that may depend on the thread.
        self._head = make_key(self._lock_prefix) if prepends else None
        # Without a prefix, a key that begins with a space is that of a note.
        own = [f"{prefix or '-'} {what}" for what in ("index", "listed", "fences", "history")]
        made = map(make_key, own) if prepends else _without_tenant(make_key, own)
        self.index, self.listed, self.fences, self.history = (key.encode() for key in made)
        self.channels = self.index + b":"
        """what the names of the channels begin with"""

    def key(self, name: str) -> bytes:
        """The key of a lock, or of a note."""
        if self._head is not None:
            return (self._head + name).encode()
        return (self._kept(name) or self._make_key(self._lock_prefix + name)).encode()

    def keyed(self, name: str) -> str:
        """The name, with its key if that may depend on the thread."""
        if self._head is not None or self._kept(name):
            return name
        return Keyed.of(name, self.key(name).decode(), self._alias)

    def queues(self, name: str) -> tuple[bytes, bytes]:
        """The wait queue of a lock, and that of the permits of which it may be one: its record says
        whether it is. Both are the same where the name cannot be that of a permit."""
        queue = self.key(name) + b" queue"
        base = base_of(name, LARGEST_SLOTS) if "#" in name else name
        if base == name:
            return queue, queue
        if (
            self._head is not None
            or self._make_key(self._lock_prefix + name) == self.key(name).decode()
        ):
            return queue, self.key(base) + b" queue"
        # Another tenant is current here. The name within the key leads to the queue of its own. No
        # digest does, and so nothing is handed over: the waiters ask again.
        before, found, behind = queue.rpartition(name.encode())
        return queue, before + base.encode() + behind if found else queue

    def queue(self, name: str, slots: int | None) -> bytes:
        """The wait queue of a lock, or with ``slots`` of the permits of which ``name`` is one."""
        return self.queues(name)[slots is not None]

    def member(self, name: str) -> bytes:
        """What the indexes and the fences have for a name: with its key, if other tenants have
        another key for that name."""
        member = name.encode()
        return member if self._head is not None else member + b"\n" + self.key(name)

    def name_of(self, member: bytes) -> str | None:
        """The name in an index; None for what cannot be one."""
        name, line, key = _text_in(member).partition("\n")
        if not (is_name(name) or (is_note(name) and name.isprintable())):
            return None
        if self._head is not None:
            return None if line else name
        return Keyed.of(name, key, self._alias) if key else None

    def lock_at(self, key: bytes) -> str | None:
        """The name of the lock with this key, which begins with `start_of_all`; None for what
        cannot be one."""
        name = _text_in(key.removeprefix(self.start_of_all() or b""))
        return name if is_name(name) else None

    def start_of_all(self) -> bytes | None:
        """What the keys of all locks begin with; None if other keys of the cache may do so too."""
        start = self.key("")
        return start if self._lock_prefix and self.key("x").startswith(start) else None

    def _kept(self, name: str) -> str | None:
        return name.key if isinstance(name, Keyed) and name.alias == self._alias else None


def _text_in(stored: bytes) -> str:
    """A text of the server; empty for what is none."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return ""


def _without_tenant(make_key: Callable[[str], str], keys: list[str]) -> list[str]:
    """The keys as a new thread makes them: all processes have the same ones, whatever is current
    where a store is made. Raises `InvalidLockConfig`."""
    with ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(Context().run, lambda: [*map(make_key, keys)]).result()
        except Exception as error:
            if interrupts(error):
                raise
            raise InvalidLockConfig(
                "the cache's KEY_FUNCTION must also answer in a new thread, where no tenant is "
                f"current: it raises {type(error).__name__}: {error}"
            ) from error
