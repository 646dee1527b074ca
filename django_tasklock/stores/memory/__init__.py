"""Leases in the memory of one process, for the tests of a project."""

from .memory_store import MemoryStore

__all__ = ["MemoryStore"]
