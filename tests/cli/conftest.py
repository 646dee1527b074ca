"""What tests of the command share with others."""

from tests.celery_tasks.conftest import room

__all__ = ["room"]
