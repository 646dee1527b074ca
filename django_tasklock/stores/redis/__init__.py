"""The store on Redis. Beside it only ``stores/cluster.py`` and ``_compat`` import ``redis``."""

from .store import RedisStore

__all__ = ["RedisStore"]
