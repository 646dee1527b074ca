"""What the tasks work on, and what the database itself says of it."""

from __future__ import annotations

from django.db import models


class Job(models.Model):
    """A piece of work. ``runs`` counts the bodies that came to their end under their fence."""

    status = models.CharField(max_length=20, default="new")
    lock_fence = models.BigIntegerField(null=True)
    runs = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"job {self.pk}: {self.status}"


class Entry(models.Model):
    """What happened to a job's row, in order.

    A trigger writes a "status" for each UPDATE that names the status; bodies write an "effect".
    ``fence`` is that of the row, or of the body's lease.
    """

    job = models.BigIntegerField()
    what = models.CharField(max_length=10)
    before = models.CharField(max_length=20)
    after = models.CharField(max_length=20)
    fence = models.BigIntegerField(null=True)
    moment = models.FloatField()

    def __str__(self) -> str:
        return f"{self.job}: {self.what} {self.before}-{self.after}"
