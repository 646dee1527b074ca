"""What django-redis and Django's Redis cache do not document, and we use.

Read in django-redis 7.0.0 and Django 5.2.19. The oldest releases that we support (see
``py310-lowest`` in pyproject.toml) have them too.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from django.core.cache.backends.base import BaseCache, default_key_func

__all__ = [
    "DECOMPRESSORS",
    "NO_COMPRESSION",
    "RawClient",
    "only_prepends",
    "picks_server_by_key",
    "raw_client",
]


class RawClient(NamedTuple):
    """How a cache reaches Redis, and how it writes values."""

    redis: Any  # redis-py's client
    encode: Callable[[Any], Any]
    loads: Callable[[bytes], Any]
    decompress: Callable[[bytes], bytes] | None  # before ``loads``; None: nothing is compressed


def only_prepends(cache: Any) -> bool:
    """Whether ``cache.make_key`` puts the same text before each key, as Django's own does.

    A project may have its own function for keys, or its own class. Uses ``key_func``.
    """
    own = getattr(type(cache), "make_key", None) is BaseCache.make_key
    return own and getattr(cache, "key_func", None) is default_key_func


def picks_server_by_key(cache: Any) -> bool:
    """Whether django-redis's ShardClient is behind ``cache``, which has a server for each key.

    By its name: a site's subclass counts, and django-redis need not be imported to ask.
    """
    own = getattr(cache, "client", None)
    return any(base.__name__ == "ShardClient" for base in type(own).__mro__)


def raw_client(cache: Any) -> RawClient | None:
    """The client of a cache of django-redis, or of Django's ``RedisCache``; None for any other.

    Neither documents how to write a value as the cache does without storing it. Uses ``client``,
    ``_serializer`` and ``_compressor`` of django-redis, ``_cache`` and ``_serializer`` of Django.
    """
    own = getattr(cache, "client", None)
    if own is not None:
        redis = own.get_client(write=True)
        if own.decode.__module__ != "django_redis.client.default":
            return RawClient(redis, own.encode, own.decode, None)  # A site's own way.
        return RawClient(redis, own.encode, own._serializer.loads, own._compressor.decompress)
    own = getattr(cache, "_cache", None)
    if own is None or not hasattr(own, "get_client"):
        return None
    serializer = own._serializer
    return RawClient(own.get_client(None, write=True), serializer.dumps, serializer.loads, None)


def _from(module: str, name: str, **options: Any) -> Callable[[], Any]:
    """Imported when it is used, which is where that compressor's own module is there."""
    return lambda: getattr(import_module(module), name)(**options)


# django-redis's compressors have no limit for what they unpack, so ours replace them, by module:
# each makes the object whose ``decompress(value, most_bytes)`` reads what that compressor wrote.
NO_COMPRESSION = "django_redis.compressors.identity"
DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "django_redis.compressors.gzip": lambda: zlib.decompressobj(31),
    "django_redis.compressors.lz4": _from("lz4.frame", "LZ4FrameDecompressor"),
    "django_redis.compressors.lzma": _from("lzma", "LZMADecompressor", memlimit=2**26),
    "django_redis.compressors.zlib": zlib.decompressobj,
    "django_redis.compressors.zstd": _from("pyzstd", "ZstdDecompressor"),
}
