from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.core.validators import FileExtensionValidator
from django.db import models
from django.urls import reverse


class Video(models.Model):
    """An upload, on its way to HLS segments and a thumbnail."""

    class Status(models.TextChoices):
        UPLOADED = "uploaded"
        PROCESSING = "processing"
        READY = "ready"
        FAILED = "failed"

    title = models.CharField(max_length=120)
    file = models.FileField(
        upload_to="uploads/",
        validators=[FileExtensionValidator(["mp4", "mov", "mkv", "webm", "avi"])],
    )
    status = models.CharField(
        max_length=12, choices=Status.choices, default=Status.UPLOADED, db_index=True
    )
    # Paths below MEDIA_ROOT, NULL until there is a result. Not FileFields: those save "no file" as
    # an empty string, which is not NULL, and the guard asks for NULL.
    hls_file = models.CharField(max_length=200, null=True, blank=True)  # noqa: DJ001
    thumbnail = models.CharField(max_length=200, null=True, blank=True)  # noqa: DJ001
    # The fence of the lease that last claimed this row.
    lock_fence = models.BigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects: ClassVar[models.Manager[Video]] = models.Manager()

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return self.title

    def get_absolute_url(self) -> str:
        return reverse("videos:detail", args=[self.pk])

    @property
    def lock_name(self) -> str:
        """The lock that `transcode` takes for this row."""
        return f"video:{self.pk}"

    @property
    def hls_url(self) -> str | None:
        return settings.MEDIA_URL + self.hls_file if self.hls_file else None

    @property
    def thumbnail_url(self) -> str | None:
        return settings.MEDIA_URL + self.thumbnail if self.thumbnail else None


class Order(models.Model):
    """Something to pay for."""

    class Status(models.TextChoices):
        OPEN = "open"
        PAID = "paid"

    title = models.CharField(max_length=120)
    amount = models.DecimalField(max_digits=8, decimal_places=2)
    status = models.CharField(max_length=8, choices=Status.choices, default=Status.OPEN)
    created_at = models.DateTimeField(auto_now_add=True)

    objects: ClassVar[models.Manager[Order]] = models.Manager()

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return self.title


class Payment(models.Model):
    """Money that the gateway took.

    Not unique for each order on purpose: if it were ever taken twice, both must be on record.
    """

    order = models.ForeignKey(Order, on_delete=models.PROTECT, related_name="payments")
    reference = models.CharField(max_length=40)
    amount = models.DecimalField(max_digits=8, decimal_places=2)
    created_at = models.DateTimeField(auto_now_add=True)

    objects: ClassVar[models.Manager[Payment]] = models.Manager()

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return self.reference


class DailyReport(models.Model):
    """The report of one day, as it was sent."""

    date = models.DateField()
    videos_ready = models.PositiveIntegerField()
    income = models.DecimalField(max_digits=10, decimal_places=2)
    created_at = models.DateTimeField(auto_now_add=True)

    objects: ClassVar[models.Manager[DailyReport]] = models.Manager()

    class Meta:
        ordering = ["-date", "pk"]

    def __str__(self) -> str:
        return str(self.date)
