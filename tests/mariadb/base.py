"""MariaDB as a database that a test brings along, beside those of its Django test case."""

from __future__ import annotations

from django.db.backends.mysql import base


class DatabaseWrapper(base.DatabaseWrapper):
    def ensure_connection(self) -> None:
        # As in `tests.postgresql.base`.
        if self.connection is None:
            with self.wrap_database_errors:
                self.connect()
