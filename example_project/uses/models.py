from __future__ import annotations

from typing import ClassVar

from django.db import models


class Product(models.Model):
    """Something of which there are so many."""

    title = models.CharField(max_length=120)
    stock = models.IntegerField()

    objects: ClassVar[models.Manager[Product]] = models.Manager()

    def __str__(self) -> str:
        return self.title


class Booking(models.Model):
    """A seat that somebody has.

    Not unique for each seat on purpose: if it were ever booked twice, both must be on record.
    """

    seat = models.PositiveIntegerField()
    customer = models.CharField(max_length=40)

    objects: ClassVar[models.Manager[Booking]] = models.Manager()

    def __str__(self) -> str:
        return f"{self.seat}: {self.customer}"
