"""What these tests share with others."""

from tests.celery_tasks.conftest import room

__all__ = ["room"]
