"""The task class: `LockedTask`."""

from .task import LockedTask

__all__ = ["LockedTask"]
