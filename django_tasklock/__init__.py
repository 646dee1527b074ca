"""
The task lock for Django and Celery.

The lock says who may run now; the row says whether there is still work; together they
survive the death of either.
"""

from ._engine.context import lock
from ._engine.lease import Lease
from ._engine.names import make_name
from ._engine.service import LockService, locks
from ._values.event import Event
from ._values.lock_info import LockInfo
from .exceptions import (
    AlreadyQueued,
    InvalidLockConfig,
    LeaseLost,
    ListingNotSupported,
    LockNotAcquired,
    NotPutBack,
    RequeueFailed,
    StatusConflict,
    StoreUnavailable,
    TaskLockError,
    TooManyAttempts,
)

__version__ = "0.1.0"

__all__ = [
    "AlreadyQueued",
    "Event",
    "InvalidLockConfig",
    "Lease",
    "LeaseLost",
    "ListingNotSupported",
    "LockInfo",
    "LockNotAcquired",
    "LockService",
    "NotPutBack",
    "RequeueFailed",
    "StatusConflict",
    "StoreUnavailable",
    "TaskLockError",
    "TooManyAttempts",
    "lock",
    "locks",
    "make_name",
]
