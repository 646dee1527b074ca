from __future__ import annotations

from django.apps import AppConfig


class UsesConfig(AppConfig):
    name = "example_project.uses"
