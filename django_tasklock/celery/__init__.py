"""`LockedTask`, the base class of locked Celery tasks, and `by`, for its ``lock_name``."""

from .._engine.names import by
from .task import LockedTask

__all__ = ["LockedTask", "by"]
