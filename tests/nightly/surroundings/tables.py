"""The tables of other apps, in the database of a stage."""

from __future__ import annotations

import sqlite3
from typing import Any

from tests.stage.stage import Stage


def install(stage: Stage, app: str) -> None:
    """Add an app to the workers' INSTALLED_APPS, and make its tables."""
    apps = stage.environment.get("STAGE_APPS", "").split()
    stage.environment["STAGE_APPS"] = " ".join([*apps, app])
    stage.script(f"""
import django; django.setup()
from django.core.management import call_command
call_command("migrate", {app!r}, verbosity=0)
""")


def rows(stage: Stage, query: str, *values: Any) -> list[dict[str, Any]]:
    """What a query finds."""
    with stage.rows() as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(query, values)]
