"""
The task lock for Django and Celery.

The lock says who may run now; the row says whether there is still work; together they
survive the death of either.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "LockService": "_engine.service",
    "locks": "_engine.service",
    "lock": "_engine.context",
    "Lease": "_engine.lease",
    "make_name": "_engine.names",
    "Event": "_values.event",
    "LockInfo": "_values.lock_info",
}
"""where the names are that are not in `exceptions`"""

if not TYPE_CHECKING:
    # A process that has the app and takes no lock, as for ``manage.py migrate``, loads none of it.
    def __getattr__(name: str) -> Any:
        if name in ("conf", "exceptions", "signals", "stores"):
            return import_module(f"{__name__}.{name}")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name in ("LockService", "locks", "lock", "Lease"):
            # They import parts of it. Python raises an error, of a deadlock, where a thread imports
            # a part of a package and another thread the package: so that comes first.
            import_module(f"{__name__}.stores")
        value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'exceptions')}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
