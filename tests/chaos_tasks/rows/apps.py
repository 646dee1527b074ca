"""The app's configuration."""

from __future__ import annotations

from django.apps import AppConfig


class RowsConfig(AppConfig):
    """Label ``chaos_tasks``."""

    name = "tests.chaos_tasks.rows"
    label = "chaos_tasks"
    default_auto_field = "django.db.models.BigAutoField"
