"""
The unmanaged `Lock`: what the admin and Django's permissions call a lock. It has no table: leases
live in the stores, and the admin fills instances from them.

`LeaseRow` is the table of one of the stores, `DatabaseStore`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from django.db import models
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    # Every process that has the app has the models, and most take no lock.
    from ._values.lock_info import LockInfo


class NoTableManager(models.Manager["Lock"]):
    """Returns no rows for every query, so that `dumpdata` and the like work without a table."""

    def get_queryset(self) -> models.QuerySet[Lock]:
        return super().get_queryset().none()  # type: ignore[no-any-return]


class Lock(models.Model):
    """A lock by its name and the alias of its store; ``id`` is made of both, and of the digest of
    the lease where this is a row of a list: such an ``id`` means that lease and no later one.

    ``info`` is what the store said of it; None if it is not locked.
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

    @classmethod
    def named(cls, store: str, name: str, digest: str = "") -> Lock:
        """Return the lock called ``name`` in the store ``store``.

        ``digest`` tells the lease that holds it; "": whatever holds it.
        """
        lease = f" {digest}" if digest else ""  # A name has no spaces.
        lock_id = f"{quote(store, safe='')}:{name}{lease}"
        return cls(id=lock_id, name=name, store=store)

    @staticmethod
    def parts_of(lock_id: str) -> tuple[str, str, str]:
        """Return the store's alias, the lock's name and the digest, which may be "".

        Raises `ValueError` for an id that `named` did not make.
        """
        store, _, rest = lock_id.partition(":")
        name, _, digest = rest.partition(" ")
        if not (store and name):
            raise ValueError(f"not the id of a lock: {lock_id!r}")
        return unquote(store), name, digest


class ExactCharField(models.CharField):  # type: ignore[type-arg]
    """Text that every database compares and sorts by its code points, spaces at its end included.

    Without it, MariaDB would take ``Video:1`` and ``vidéo:1`` for ``video:1``, and the names that
    begin with a prefix would not be one range of PostgreSQL's index.
    """

    def db_parameters(self, connection: Any) -> Any:
        collation = "C" if connection.vendor == "postgresql" else None
        if connection.vendor == "mysql":
            # utf8mb4_bin ignores spaces at the end.
            is_mariadb = connection.mysql_is_mariadb
            collation = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
        return {**super().db_parameters(connection), "collation": collation}

    def db_type(self, connection: Any) -> str | None:
        column = super().db_type(connection)
        if column is None or connection.vendor != "postgresql":
            return column
        # By its long name: for a "varchar" Django makes a second index, for prefixes. The first
        # one serves them here.
        return column.replace("varchar", "character varying")


class LeaseRow(models.Model):
    """A row of `DatabaseStore`: what is under a name, or was not long ago.

    The store alone reads and writes these rows, with statements of its own. Moments are in
    microseconds since the epoch, by the clock of the database. Sites with another store have the
    table too, and it stays empty.
    """

    name = ExactCharField(max_length=255, primary_key=True, editable=False)
    token = ExactCharField(max_length=22, editable=False)
    version = ExactCharField(max_length=64, editable=False)
    record = models.TextField(editable=False)
    expires = models.BigIntegerField(editable=False)
    began = models.BigIntegerField(editable=False)
    fence = models.BigIntegerField(editable=False)

    class Meta:
        db_table = "django_tasklock_lease"
        default_permissions = ()
        indexes = [models.Index(fields=["expires", "fence"], name="tasklock_lease_expires")]

    def __str__(self) -> str:
        return str(self.name)
