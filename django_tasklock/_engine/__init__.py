"""The lock service and its parts: acquire, wait, renew, release."""

from . import lease
from .service import LockService

# The signals are sent by what stands below it.
lease.sender = LockService
