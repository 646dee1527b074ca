"""MariaDB as a database that a test brings along; see `tests.mariadb.base`."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("MySQLdb") is None:
    # PyMySQL needs no compiler; Django's own driver is preferred where it is installed.
    import pymysql

    pymysql.install_as_MySQLdb()

from MySQLdb import connect

__all__ = ["connect"]
