"""Leases in a database of the project, for sites without Redis: `DatabaseStore`."""

from .store import DatabaseStore

__all__ = ["DatabaseStore"]
