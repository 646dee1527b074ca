"""The admin's pages of live locks, and a mixin for the admin of what tasks work on."""

from django.contrib import admin

from ..models import Lock
from .lock_admin import LockAdmin
from .locked_row import LockedRowAdminMixin

__all__ = ["LockAdmin", "LockedRowAdminMixin"]

admin.site.register(Lock, LockAdmin)
