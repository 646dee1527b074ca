"""The store on Redis; the only place that imports ``redis`` and ``django_redis``."""

from .store import RedisStore

__all__ = ["RedisStore"]
