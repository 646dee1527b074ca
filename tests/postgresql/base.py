"""PostgreSQL as a database that a test brings along, beside those of its Django test case."""

from __future__ import annotations

from django.db.backends.postgresql import base


class DatabaseWrapper(base.DatabaseWrapper):
    def ensure_connection(self) -> None:
        # Django's test cases patch this very method of the base class to forbid every alias
        # that they did not set up themselves.
        if self.connection is None:
            with self.wrap_database_errors:
                self.connect()
