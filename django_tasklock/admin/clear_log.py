"""The log entries of clears: who cleared which lock, and who held it.

The locks are in a store and the entries in a database, so no transaction holds both. What an
operator may rely on, whenever the process dies: each lock that the admin has cleared has an entry.
So the entries are committed before the store is asked, and say only that; afterwards those of locks
that were cleared say so, and the others are deleted. An entry that still says "Asked to clear it"
is of a process that died in between, or of a store that did not answer: the lock's page, the
store's history and the log tell whether it was cleared.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import connections, router, transaction
from django.http import HttpRequest
from django.utils.translation import gettext

from .._values.describe import printable
from .._values.lock_info import LockInfo
from .seen import row_of

__all__ = ["ClearLog"]


class ClearLog:
    """The entries of some locks of one store, which a user clears together."""

    def __init__(self, request: HttpRequest) -> None:
        self._user: Any = request.user.pk
        self._entries: list[tuple[LockInfo, LogEntry]] = []
        self._database = router.db_for_write(LogEntry)

    def asked(self, holders: Sequence[LockInfo]) -> None:
        """Commit an entry for each lock that the store is about to be asked to clear."""
        self._entries = [(holder, self._entry(holder)) for holder in holders]
        entries = [entry for _, entry in self._entries]
        can_return = connections[self._database].features.can_return_rows_from_bulk_insert
        with transaction.atomic(self._database):
            if can_return:
                LogEntry.objects.using(self._database).bulk_create(entries)
            else:  # MySQL does not return their keys, by which they are found afterwards.
                for entry in entries:
                    entry.save(using=self._database)

    def answered(self, cleared: Collection[str]) -> None:
        """Correct the entries after the store's answer: ``cleared`` are the names of the locks."""
        done = []
        for holder, entry in self._entries:
            if holder.name in cleared:
                entry.change_message = _cleared(holder)
                done.append(entry)
        others = [entry.pk for holder, entry in self._entries if holder.name not in cleared]
        entries = LogEntry.objects.using(self._database)
        with transaction.atomic(self._database):
            entries.bulk_update(done, ["change_message"])
            entries.filter(pk__in=others).delete()

    def _entry(self, holder: LockInfo) -> LogEntry:
        row = row_of(holder)
        return LogEntry(
            user_id=self._user,
            content_type_id=ContentType.objects.get_for_model(row, for_concrete_model=False).pk,
            object_id=row.pk,
            object_repr=str(row)[:200],
            action_flag=DELETION,
            change_message=_asked(holder),
        )


def _asked(holder: LockInfo) -> str:
    return gettext(
        "Asked to clear it; no answer yet. It was held by %(owner)s in the store “%(store)s”."
    ) % {"owner": printable(holder.owner), "store": holder.store}


def _cleared(holder: LockInfo) -> str:
    return gettext("Cleared. It was held by %(owner)s in the store “%(store)s”.") % {
        "owner": printable(holder.owner),
        "store": holder.store,
    }
