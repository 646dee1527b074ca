"""The task class: `LockedTask`; and `by`, for its ``lock_name``."""

from ..naming import by
from .task import LockedTask

__all__ = ["LockedTask", "by"]
