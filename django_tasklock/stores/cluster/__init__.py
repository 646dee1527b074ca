"""The store on a Redis Cluster."""

from .store import RedisClusterStore

__all__ = ["RedisClusterStore"]
