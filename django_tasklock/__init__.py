"""
The task lock for Django and Celery.

The lock says who may run now; the row says whether there is still work; together they
survive the death of either.
"""

from .context import lock
from .exceptions import (
    InvalidLockConfig,
    LeaseLost,
    ListingNotSupported,
    LockNotAcquired,
    StatusConflict,
    StoreUnavailable,
    TaskLockError,
)
from .lease import Lease, LockInfo
from .naming import make_name
from .service import LockService, locks

__version__ = "0.1.0"

__all__ = [
    "InvalidLockConfig",
    "Lease",
    "LeaseLost",
    "ListingNotSupported",
    "LockInfo",
    "LockNotAcquired",
    "LockService",
    "StatusConflict",
    "StoreUnavailable",
    "TaskLockError",
    "lock",
    "locks",
    "make_name",
]
