"""Stores that need no server: one whose server is nowhere, to decode with, and one in memory."""

from __future__ import annotations

from typing import Any

from django_tasklock.stores import stores
from django_tasklock.stores.redis.store import RedisStore

__all__ = ["CACHES", "SERIALIZERS", "TASKLOCK", "redis_store"]

SERIALIZERS = ("pickle.Pickle", "json.JSON", "msgpack.MSGPack")


def _cache(serializer: str) -> dict[str, Any]:
    module, _, name = serializer.partition(".")
    return {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": "redis://127.0.0.1:1",
        "OPTIONS": {
            "SERIALIZER": f"django_redis.serializers.{module}.{name}Serializer",
            "COMPRESSOR": "django_redis.compressors.zlib.ZlibCompressor",
        },
    }


CACHES: dict[str, dict[str, Any]] = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    **{serializer: _cache(serializer) for serializer in SERIALIZERS},
}
TASKLOCK: dict[str, dict[str, Any]] = {
    "default": {"BACKEND": "django_tasklock.stores.memory.MemoryStore"},
    **{serializer: {"CACHE": serializer} for serializer in SERIALIZERS},
}


def redis_store(serializer: str) -> RedisStore:
    """The store whose cache has this serializer. Nothing is sent: its server is nowhere."""
    store = stores[serializer]
    assert isinstance(store, RedisStore)
    return store
