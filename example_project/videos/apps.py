from __future__ import annotations

from django.apps import AppConfig


class VideosConfig(AppConfig):
    name = "example_project.videos"
    verbose_name = "Videos"

    def ready(self) -> None:
        # So that `.delay()` in a web process knows this project's broker.
        from example_project import celery  # noqa: F401
