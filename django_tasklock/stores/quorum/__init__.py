"""Leases that a majority of other stores has granted."""

from .store import QuorumStore

__all__ = ["QuorumStore"]
