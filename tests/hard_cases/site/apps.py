"""The app's configuration."""

from __future__ import annotations

from django.apps import AppConfig


class HardCasesConfig(AppConfig):
    """Label ``hard_cases``."""

    name = "tests.hard_cases.site"
    label = "hard_cases"
    default_auto_field = "django.db.models.BigAutoField"
