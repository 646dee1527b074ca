"""Leases in ZooKeeper."""

from .store import ZooKeeperStore

__all__ = ["ZooKeeperStore"]
