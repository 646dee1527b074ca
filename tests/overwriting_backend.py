"""A result backend that lets STARTED overwrite a success, as that of django-celery-results."""

from __future__ import annotations

from typing import Any

from celery.backends.base import KeyValueStoreBackend


class OverwritingBackend(KeyValueStoreBackend):
    """Keeps its values in this process."""

    persistent = True
    implements_incr = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.values: dict[Any, Any] = {}

    def get(self, key: Any) -> Any:
        return self.values.get(key)

    def set(self, key: Any, value: Any) -> None:
        self.values[key] = value

    def delete(self, key: Any) -> None:
        self.values.pop(key, None)

    def _store_result(self, task_id: Any, *args: Any, **kwargs: Any) -> Any:
        # Celery's class looks for a success before it stores anything.
        self.delete(self.get_key_for_task(task_id))
        return super()._store_result(task_id, *args, **kwargs)  # type: ignore[misc]
