"""The lock service and its parts: acquire, wait, renew, release."""

# Whoever imports a part of it has the sender of the signals, too.
from .service import LockService as LockService
