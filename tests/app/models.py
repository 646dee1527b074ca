from __future__ import annotations

from django.db import models


class Job(models.Model):
    """A row to be guarded: what a task claims, works on and finishes."""

    status = models.CharField(max_length=20, default="queued", db_index=True)
    lock_fence = models.BigIntegerField(null=True, blank=True)
    result_file = models.CharField(max_length=200, null=True, blank=True)  # noqa: DJ001 - guards exclude by NULL
    uploaded_at = models.DateTimeField(null=True, blank=True)
    done_count = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return f"job {self.pk} ({self.status})"
