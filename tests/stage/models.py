"""One model: what the tasks work on."""

from __future__ import annotations

from django.db import models


class Job(models.Model):
    """A piece of work that must be done exactly once."""

    status = models.CharField(max_length=20, default="new")
    lock_fence = models.BigIntegerField(null=True)
    result = models.CharField(max_length=200, default="")

    def __str__(self) -> str:
        return f"job {self.pk}: {self.status}"
