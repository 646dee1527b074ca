"""The admin's pages of live locks, and a mixin for the admin of what tasks work on."""

from .lock_admin import LockAdmin
from .locked_row import LockedRowAdminMixin

__all__ = ["LockAdmin", "LockedRowAdminMixin"]
