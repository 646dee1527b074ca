"""The table of jobs in another database than the default one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, models
from django.test.utils import override_settings

from tests.app.models import Job

__all__ = ["jobs_on"]


@contextmanager
def jobs_on(alias: str, *, by: str | None = None) -> Iterator[None]:
    """Make the table in the database ``alias``, and send the jobs there; or to ``by``, another
    alias of the same database."""
    with connections[alias].schema_editor() as editor:
        editor.create_model(Job)
    try:
        with override_settings(DATABASE_ROUTERS=[_Router(by or alias)]):
            yield
    finally:
        with connections[alias].schema_editor() as editor:
            editor.delete_model(Job)


class _Router:
    def __init__(self, alias: str) -> None:
        self._alias = alias

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str | None:
        return self._alias if model is Job else None

    db_for_write = db_for_read
