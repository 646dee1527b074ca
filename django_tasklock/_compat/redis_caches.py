"""What django-redis, django-valkey and Django's Redis cache do not document, and we use.

Read in django-redis 7.0.0, django-valkey 0.4.1 and Django 5.2.19. The oldest releases that we
support (see ``py310-lowest`` in pyproject.toml) have them too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import redis
from django.core.cache.backends.base import BaseCache, default_key_func

# Arguments of connections whose values are classes of valkey-py.
VALKEY_OPTIONS = frozenset({"parser_class", "retry", "credential_provider"})


class RawCache(NamedTuple):
    """How a cache reaches Redis, makes its keys, and writes a text.

    ``pool`` is of redis-py, and None if a key may have a server of its own, as with the
    ShardClient. ``dumps`` makes what the cache would write for a text, but not compressed: a cache
    reads that too. ``prepends``: ``make_key`` puts the same text before each key, as Django's own.
    """

    pool: Any
    dumps: Callable[[str], Any]
    make_key: Callable[[str], str]
    prepends: bool


def raw_cache(cache: Any) -> RawCache | None:
    """A cache of django-redis or django-valkey, or Django's ``RedisCache``; None for any other.

    Neither documents how to write a value as the cache does without storing it. Uses ``client`` and
    ``_serializer`` of django-redis, ``_cache`` and ``_serializer`` of Django, ``key_func`` of both.
    """
    own, client = getattr(cache, "client", None), None
    if own is not None:
        dumps = own._serializer.dumps
        # By its name: a site's subclass counts.
        if not any(base.__name__ == "ShardClient" for base in type(own).__mro__):
            client = own.get_client(write=True)
    else:
        own = getattr(cache, "_cache", None)
        if own is None or not hasattr(own, "get_client"):
            return None
        client, dumps = own.get_client(None, write=True), own._serializer.dumps
    prepends = type(cache).make_key is BaseCache.make_key and cache.key_func is default_key_func
    pool = client and _pool_of_redis_py(client.connection_pool)
    return RawCache(pool, dumps, cache.make_key, prepends)


def _pool_of_redis_py(pool: Any) -> Any:
    """The pool, or one of redis-py that connects as a pool of valkey-py does: valkey-py is redis-py
    under other names, but its errors are others. It connects to nothing. None for Sentinels."""
    kind = pool.connection_class
    if kind.__module__.partition(".")[0] != "valkey":
        return pool
    ours = getattr(redis.connection, kind.__name__, None)
    if ours is None:
        return None
    options = {
        name: value
        for name, value in pool.connection_kwargs.items()
        if not type(value).__module__.startswith("valkey") and name not in VALKEY_OPTIONS
    }
    return redis.ConnectionPool(ours, pool.max_connections, **options)
