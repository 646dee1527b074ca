"""The store on a Redis Cluster, made of the parts of ``stores/redis/``."""

from .store import RedisClusterStore

__all__ = ["RedisClusterStore"]
