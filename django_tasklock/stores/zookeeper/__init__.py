"""Locks in ZooKeeper: one persistent node for each, which ends by the leader's clock."""

from .store import ZooKeeperStore

__all__ = ["ZooKeeperStore"]
