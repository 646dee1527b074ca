"""`LockedTask`, the base class of locked Celery tasks; and for its options `by` and `limit`."""

from .._engine.names import by
from .options import limit
from .task import LockedTask

__all__ = ["LockedTask", "by", "limit"]
