"""Locks in a table of a database of the project."""

from .store import DatabaseStore

__all__ = ["DatabaseStore"]
