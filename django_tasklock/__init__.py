"""
The task lock for Django and Celery.

The lock says who may run now; the row says whether there is still work; together they
survive the death of either.
"""

# ruff: noqa: F403, F405

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._engine.decorator import SkippingDecorator
    from ._engine.lease import Lease
    from ._engine.lock import LockContext, lock
    from ._engine.names import make_name
    from ._engine.service import AcquireAllOptions, AcquireOptions, LockOptions, LockService, locks
    from ._values.lock_info import Event, LockInfo
    from ._values.owner import Owner
    from .exceptions import *

__version__ = "0.1.0"

__all__ = [
    "AcquireAllOptions", "AcquireOptions", "AlreadyQueued", "Event", "InvalidLockConfig",
    "Lease", "LeaseLost", "ListingNotSupported", "LockContext", "LockInfo", "LockNotAcquired",
    "LockOptions", "LockService", "Owner", "RequeueFailed", "SkippingDecorator",
    "StatusConflict", "StoreUnavailable", "TaskLockError", "TooManyAttempts", "lock", "locks",
    "make_name",
]  # fmt: skip

# Where the names are that are not in `exceptions`.
_HOMES = {
    "_engine.service": "AcquireAllOptions AcquireOptions LockOptions LockService locks",
    "_engine.lock": "LockContext SkippingDecorator lock",
    "_engine.lease": "Lease",
    "_engine.names": "make_name",
    "_values.lock_info": "Event LockInfo",
    "_values.owner": "Owner",
}

if not TYPE_CHECKING:
    # A process that has the app and takes no lock, as for ``manage.py migrate``, loads none of it.
    def __getattr__(name: str) -> Any:
        if name in ("conf", "exceptions", "signals", "stores"):
            return import_module(f"{__name__}.{name}")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = next((home for home in _HOMES if name in _HOMES[home].split()), "exceptions")
        if home.startswith("_engine"):
            # They import parts of it. Python raises an error, of a deadlock, where a thread imports
            # a part of a package and another thread the package: so that comes first.
            import_module(f"{__name__}.stores")
        value = getattr(import_module(f"{__name__}.{home}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
