"""A row for the guard."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Job(models.Model):
    """Ready, in the works, done."""

    status = models.CharField(max_length=20, default="ready")

    objects: ClassVar[models.Manager[Job]] = models.Manager()

    class Meta:
        app_label = "site"

    def __str__(self) -> str:
        return f"job {self.pk} ({self.status})"
