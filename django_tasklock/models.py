"""
The unmanaged `Lock`: what the admin and Django's permissions call a lock.

It has no table. Leases live in the stores; the admin fills instances from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from django.db import models
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from .lease import LockInfo

__all__ = ["Lock"]


class NoTableManager(models.Manager["Lock"]):
    """Answers every query with nothing, so that `dumpdata` and the like pass by."""

    def get_queryset(self) -> models.QuerySet[Lock]:
        nothing: models.QuerySet[Lock] = super().get_queryset().none()
        return nothing


class Lock(models.Model):
    """A lock by its name and the alias of its store; ``id`` is made of both.

    ``info`` is what the store said of it, or None where it is not locked any more.
    """

    info: LockInfo | None = None

    id = models.CharField(max_length=512, primary_key=True, editable=False)
    name = models.CharField(_("name"), max_length=200, editable=False)
    store = models.CharField(_("store"), max_length=255, editable=False)

    objects = NoTableManager()

    class Meta:
        managed = False
        default_permissions = ("view", "delete")
        base_manager_name = "objects"
        verbose_name = _("lock")
        verbose_name_plural = _("locks")

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def id_of(store: str, name: str) -> str:
        """Return the ``id`` of the lock called ``name`` in the store ``store``."""
        return f"{quote(store, safe='')}:{name}"

    @staticmethod
    def parts_of(lock_id: str) -> tuple[str, str]:
        """Return the store's alias and the lock's name that ``lock_id`` was made of.

        Raises `ValueError` where it was not made by `id_of`.
        """
        store, colon, name = lock_id.partition(":")
        if not (store and colon and name):
            raise ValueError(f"not the id of a lock: {lock_id!r}")
        return unquote(store), name
