"""The keys of one store on Redis, and how their values are written: as its cache writes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from functools import lru_cache
from operator import attrgetter
from typing import Any

from django.core.cache import caches

from ..._compat.redis import RawCache, raw_cache
from ..._values.arguments import LARGEST_SLOTS, base_of, is_name
from ..._values.interruptions import interrupts
from ..._values.lock_info import LockKeys
from ...conf import StoreSettings
from ...exceptions import InvalidLockConfig
from ..records import Record, is_note, plain_note, record_of, text_of_record

# The store's option: how many seconds connect, send and read may take; None: no limit.
SOCKET_TIMEOUT_OPTION = "SOCKET_TIMEOUT"
# A token that looks like any other.
SAMPLE_TOKEN = "5aMpLe_-0123456789abcd"  # noqa: S105  # nosec B105
# The text of a lease's record before its time, for an owner: JSON is the most expensive part of an
# acquire, and most leases of a process differ in their token, their time and the task id alone.
_between = lru_cache(typed=True)(lambda **owner: text_of_record({**owner, "at": ""})[1:-3])


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


class Encoding:
    """How the text of a record is written, and what the scripts look for in the value."""

    def __init__(self, dumps: Callable[[str], bytes | str]) -> None:
        """``dumps``: makes a value of a text."""
        self._dumps = dumps
        # What every record with a version has in its value, and no other.
        self.versioned = self.with_version("").removesuffix(b'"').removesuffix(b"\\")

    def value_of(self, record: Record) -> bytes:
        """The value to write for a record. That of a note is a plain text, which needs less space:
        nobody reads one through the cache. Not if it has a key or a version besides."""
        if "text" in record and not {"key", "version"} & record.keys():
            return plain_note(record["text"])
        return self._value(text_of_record(record))

    def value_of_lease(self, token: str, owner: Record) -> bytes:
        """The value to write for the `new_record` of a lease."""
        rest = {**owner}
        task_id = rest.pop("task_id", None)
        own = "" if task_id is None else f'"task_id":{text_of_record(task_id)},'
        return self._value(f'{{"token":"{token}",{own}{_between(**rest)}{time.time()}}}')

    def with_version(self, version: str) -> bytes:
        """What a record with this version has in its value, and no other."""
        # With what JSON has to escape: pickle's protocol 0 escapes that once more.
        sample = {"token": SAMPLE_TOKEN, "version": version, "task": '"\u00e9\\'}
        value = self.value_of(sample)
        at = value.find(SAMPLE_TOKEN.encode())
        if at < 0 or record_of(value) != sample:
            raise ValueError("the text of a record cannot be found in its value")
        return value[value.index(b",", at) : value.rindex(b",")]

    def _value(self, text: str) -> bytes:
        value = self._dumps(text)
        return value.encode() if isinstance(value, str) else bytes(value)


def served(settings: StoreSettings) -> tuple[RawCache, Encoding]:
    """The cache of a store.

    Raises `InvalidLockConfig` for one without Redis; for one that picks the server by the key,
    since a script needs all of its keys on one server; and for one that writes a text so that it
    cannot be found in the value.
    """
    cache: Any = caches[settings.cache]
    raw = raw_cache(cache)
    if raw is None:
        raise settings.wrong(
            "it needs a cache of django-redis or django-valkey, or Django's own RedisCache; its "
            f"CACHE {settings.cache!r} is a {type(cache).__name__}"
        )
    if raw.pool is None:
        raise settings.wrong(
            f"it cannot use the client of its CACHE {settings.cache!r}, a ShardClient or one of "
            "django-valkey for Sentinels: all keys of a lock must be on one server"
        )
    try:
        return raw, Encoding(raw.dumps)
    except ValueError as error:
        raise settings.wrong(
            f"it cannot use the serializer of its CACHE {settings.cache!r}: {error}, and the "
            "server must find a lease's token there. Give the locks a cache of their own, with a "
            "serializer of Django or django-redis"
        ) from error


def timeouts(settings: StoreSettings) -> dict[str, float | None]:
    """What the option SOCKET_TIMEOUT says, as arguments of redis-py's ``Connection``. Raises
    `InvalidLockConfig` for a wrong value."""
    if SOCKET_TIMEOUT_OPTION not in settings.options:
        return {}
    has_none = settings.options[SOCKET_TIMEOUT_OPTION] is None
    limit = None if has_none else settings.seconds(SOCKET_TIMEOUT_OPTION, 0.0)
    return {"socket_timeout": limit, "socket_connect_timeout": limit}
