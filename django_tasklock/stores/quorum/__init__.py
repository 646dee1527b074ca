"""See `QuorumStore`."""

from .store import QuorumStore

__all__ = ["QuorumStore"]
