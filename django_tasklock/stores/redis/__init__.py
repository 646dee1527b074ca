"""The store on Redis. Beside it only ``stores/cluster`` and ``_compat`` import ``redis``."""

from .store import RedisStore

__all__ = ["RedisStore"]
