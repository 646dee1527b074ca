from __future__ import annotations

from django.contrib import admin

from django_tasklock.admin import LockedRowAdminMixin
from tests.app.models import Job


@admin.register(Job)
class JobAdmin(LockedRowAdminMixin, admin.ModelAdmin):
    list_display = ("id", "status", "done_count")
    list_editable = ("status",)
