"""The tables of a run, the trigger that keeps their history, and what the history says.

On PostgreSQL the trigger is slow now and then, so that a connection can be cut in a claim and in a
finish. Another one is a full disk: nobody may mount a small one everywhere, and it raises what the
server does then, with the same SQLSTATE (53100), of which psycopg and Django make the same
exceptions. A database that is read-only would be another error, which is no OperationalError.
"""

from __future__ import annotations

import time
from typing import Any

from django.db import connection

from tests.chaos.history import History, now

__all__ = ["make_tables", "statuses", "write_entries"]

ON_POSTGRESQL = """
CREATE FUNCTION note_status() RETURNS trigger AS $$
BEGIN
  IF random() < 0.03 THEN PERFORM pg_sleep(0.15); END IF;
  INSERT INTO chaos_tasks_entry (job, what, before, after, fence, moment) VALUES
    (NEW.id, 'status', OLD.status, NEW.status, NEW.lock_fence,
     extract(epoch from clock_timestamp()));
  RETURN NEW;
END $$ LANGUAGE plpgsql;
CREATE TRIGGER note_status AFTER UPDATE OF status ON chaos_tasks_job
  FOR EACH ROW EXECUTE FUNCTION note_status();
CREATE TABLE chaos_tasks_disk AS SELECT 0.0::float AS refuses;
CREATE FUNCTION refuse() RETURNS trigger AS $$
BEGIN
  IF random() < (SELECT refuses FROM chaos_tasks_disk) THEN
    RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full';
  END IF;
  RETURN NEW;
END $$ LANGUAGE plpgsql;
CREATE TRIGGER refuse BEFORE UPDATE ON chaos_tasks_job FOR EACH ROW EXECUTE FUNCTION refuse();
CREATE TRIGGER refuse BEFORE INSERT ON chaos_tasks_entry FOR EACH ROW EXECUTE FUNCTION refuse();
"""
ON_SQLITE = """
CREATE TRIGGER note_status AFTER UPDATE OF status ON chaos_tasks_job
BEGIN
  INSERT INTO chaos_tasks_entry (job, what, before, after, fence, moment) VALUES
    (NEW.id, 'status', OLD.status, NEW.status, NEW.lock_fence,
     (julianday('now') - 2440587.5) * 86400);
END;
"""


def make_tables(jobs: int) -> None:
    """Make the tables, and rows with the keys 1 to ``jobs``."""
    from tests.chaos_tasks.rows.models import Entry, Job

    with connection.schema_editor() as editor:
        editor.create_model(Job)
        editor.create_model(Entry)
    with connection.cursor() as cursor:
        cursor.execute(ON_POSTGRESQL if connection.vendor == "postgresql" else ON_SQLITE)
    Job._default_manager.bulk_create([Job(pk=1 + number) for number in range(jobs)], 1000)


def statuses() -> dict[int, str]:
    """The status of each row."""
    from tests.chaos_tasks.rows.models import Job

    return dict(Job._default_manager.values_list("pk", "status"))


def write_entries(history: History) -> None:
    """Write what happened to the rows, and how they are, into the history."""
    from tests.chaos_tasks.rows.models import Entry, Job

    # The database says when by the clock of the day.
    ahead = time.time() - now()
    fields = ("id", "job", "what", "before", "after", "fence", "moment")
    entry: dict[str, Any]
    for entry in Entry._default_manager.order_by("id").values(*fields):
        job, moment = entry.pop("job"), entry.pop("moment")
        history.write("row", at=moment - ahead, name=str(job), **entry)
    for pk, status, fence in Job._default_manager.values_list("pk", "status", "lock_fence"):
        history.write("left", name=str(pk), status=status, fence=fence)
