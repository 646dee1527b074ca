"""The rows of a soak: in PostgreSQL where that lets us in, else in SQLite."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from psycopg.conninfo import conninfo_to_dict

from tests import needs

__all__ = ["database", "make_tables", "rows_of", "transitions_of"]

CHANGES = (
    "CREATE TABLE changes (id {key}, row_id bigint NOT NULL, was varchar(20) NOT NULL,"
    " became varchar(20) NOT NULL, fence bigint NULL)"
)
INSERTS = (
    "INSERT INTO changes (row_id, was, became, fence)"
    " VALUES (NEW.id, OLD.status, NEW.status, NEW.lock_fence)"
)
WHEN = "UPDATE OF status ON stage_job FOR EACH ROW WHEN (OLD.status <> NEW.status)"
NOTE = f"AS $$ BEGIN {INSERTS}; RETURN NEW; END $$"
POSTGRES = (
    CHANGES.format(key="bigserial PRIMARY KEY"),
    f"CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql {NOTE}",
    f"CREATE TRIGGER noted AFTER {WHEN} EXECUTE FUNCTION note()",
)
SQLITE = (
    CHANGES.format(key="integer PRIMARY KEY AUTOINCREMENT"),
    f"CREATE TRIGGER noted AFTER {WHEN} BEGIN {INSERTS}; END",
)


@contextlib.contextmanager
def database(folder: Path) -> Iterator[dict[str, Any]]:
    """The settings of a database of one's own, which is dropped afterwards."""
    with contextlib.ExitStack() as stack:
        try:
            dsn = stack.enter_context(needs.postgres())
        # Outside of a test it is no reason to end.
        except (pytest.skip.Exception, pytest.fail.Exception):
            yield {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(folder / "rows.sqlite3"),
                "OPTIONS": {
                    "timeout": 20,
                    "transaction_mode": "IMMEDIATE",
                    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;",
                },
            }
            return
        said = conninfo_to_dict(dsn)
        names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD"}
        names |= {"host": "HOST", "port": "PORT"}
        known = {names[key]: value for key, value in said.items() if key in names}
        yield {"ENGINE": "django.db.backends.postgresql", **known}


def make_tables() -> None:
    """The rows, and a table into which a trigger writes each change of a status."""
    from tests.stage.models import Job

    with connection.schema_editor() as editor:
        editor.create_model(Job)
    with connection.cursor() as cursor:
        for statement in POSTGRES if connection.vendor == "postgresql" else SQLITE:
            cursor.execute(statement)


def rows_of() -> dict[int, tuple[str, str]]:
    """The status of each row, and the kind of task that it was made for."""
    from tests.stage.models import Job

    return {row.pk: (row.status, row.result) for row in Job._default_manager.all()}


def transitions_of() -> dict[int, list[tuple[str, str, int | None]]]:
    """Of each row, in their order: which status it had, which it got, and its fence then."""
    found: defaultdict[int, list[tuple[str, str, int | None]]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute("SELECT row_id, was, became, fence FROM changes ORDER BY id")
        for row, was, became, fence in cursor.fetchall():
            found[row].append((was, became, fence))
    return found
