"""The caches that the store serves: how they reach Redis, and how they write a text."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from django.core.cache import caches

from ..._compat.redis_caches import RawCache, raw_cache
from ...conf import StoreSettings
from ..records import Record, plain_note, record_of, text_of_record

# The store's option: how many seconds connect, send and read may take; None: no limit.
SOCKET_TIMEOUT_OPTION = "SOCKET_TIMEOUT"
# A token that looks like any other.
SAMPLE_TOKEN = "5aMpLe_-0123456789abcd"  # noqa: S105  # nosec B105
# The text of a lease's record before its time, for an owner: JSON is the most expensive part of an
# acquire, and most leases of a process differ in their token, their time and the task id alone.
_between = lru_cache(typed=True)(lambda **owner: text_of_record({**owner, "at": ""})[1:-3])


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
