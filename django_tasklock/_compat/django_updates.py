"""What Django does not document of its queries and we use: an UPDATE whose SQL is kept.

Django's ORM builds the SQL of each ``update()`` anew, which takes longer than the UPDATE itself on
a database near by. Read in Django 5.2.19; the other releases that we support have it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections, transaction
from django.db.models import Manager, Model, QuerySet
from django.db.models.sql import UpdateQuery

__all__ = ["KeptUpdate", "Made", "Make", "is_plain_key", "kept_update"]

Made = tuple[QuerySet[Model], Mapping[str, Any]]
"""rows, and how they are to change"""
Make = Callable[[Any, int | None], Made]
"""the same for a primary key and a fence"""

PLAIN_KEYS: Mapping[type, tuple[Any, Any]] = {
    int: (1_234_567_891, 1_987_654_321),
    # Of a shape that a field which tidies its texts would change.
    str: (" K\u017f k-1234567891 ", " K\u017f k-1987654321 "),
    UUID: (UUID(int=1_234_567_891), UUID(int=1_987_654_321)),
}
"""two keys of each type with which an UPDATE is compiled, to see where its key goes"""
PLAIN_FENCES = (1_111_111_111_111_111, 222)
"""the same of fences: Django leaves a compare out whose number is too large for its column, so that
the two UPDATEs differ then"""
PLAIN_INTEGERS = range(2**31)
"""which every database compares with a key of each of the usual types"""


class KeptUpdate(NamedTuple):
    """An UPDATE for any row of a model, by its key and its fence."""

    sql: str
    values: Sequence[Any]
    keys: Sequence[int]
    """the places of the key in the values"""
    fences: Sequence[int]

    def run(self, using: str, pk: Any, fence: int | None) -> int:
        """Carry it out, and return how many rows there were, as ``QuerySet.update``."""
        values = list(self.values)
        for place in self.keys:
            values[place] = pk
        for place in self.fences:
            values[place] = fence
        with (
            transaction.mark_for_rollback_on_error(using=using),
            connections[using].cursor() as cursor,
        ):
            cursor.execute(self.sql, values)
            return int(cursor.rowcount)


def kept_update(make: Make, using: str, kind: type, *, fenced: bool) -> KeptUpdate | None:
    """Return the UPDATE that ``make(pk, fence)`` describes, for all keys of the type ``kind``.

    None: only Django knows what becomes of such a key, or of such a model. Uses ``query`` of a
    queryset, ``chain`` and ``add_update_values`` of a query, and ``as_sql`` of its compiler.
    """
    keys, fences = PLAIN_KEYS.get(kind), PLAIN_FENCES if fenced else (None, None)
    if keys is None:
        return None
    compiled = []
    for pk, fence in zip(keys, fences, strict=True):
        try:
            rows, changes = make(pk, fence)
            query: Any = rows.query.chain(UpdateQuery)
            query.add_update_values(changes)
            compiled.append(query.get_compiler(using).as_sql())
        except Exception:
            # A key that the field refuses: the caller gets the error from ``update()``.
            return None
        if not _is_plain(rows.model):
            return None
    (sql, one), (same_sql, other) = compiled
    if sql != same_sql or len(one) != len(other):
        return None
    places: dict[Any, list[int]] = {"key": [], "fence": []}
    for place, values in enumerate(zip(one, other, strict=True)):
        if values == keys and type(values[0]) is kind:
            places["key"].append(place)
        elif fenced and values == fences:
            places["fence"].append(place)
        elif values[0] != values[1]:
            return None  # The field makes something else of a key.
    if not places["key"] or (fenced and not places["fence"]):
        return None
    return KeptUpdate(sql, tuple(one), tuple(places["key"]), tuple(places["fence"]))


def is_plain_key(pk: Any) -> bool:
    """Whether a kept UPDATE may take the key as it is."""
    return type(pk) is not int or pk in PLAIN_INTEGERS


def _is_plain(model: type[Model]) -> bool:
    """Whether an UPDATE of the model's rows is one statement on one table, with nothing added."""
    return not model._meta.parents and type(model._base_manager) is Manager
