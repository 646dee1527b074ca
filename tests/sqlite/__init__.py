"""An SQLite file as a database that a test brings along; see `tests.sqlite.base`."""
