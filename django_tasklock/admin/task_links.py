"""Task ids as links to the page about the task, as ``TASKLOCK_TASK_URL`` says."""

from __future__ import annotations

from django.utils.html import format_html

from .._values.describe import printable
from ..conf import task_url
from ..exceptions import InvalidLockConfig

__all__ = ["task_link"]


def task_link(task_id: str | None) -> str | None:
    """Return a task id as text that is safe to show, and a link where the setting is right."""
    if task_id is None:
        return None
    try:
        url = task_url(task_id)
    except InvalidLockConfig:  # A system check reports it.
        url = None
    if url is None or not task_id:
        return printable(task_id)
    return format_html(
        '<a class="tasklock-task" href="{}" rel="noreferrer">{}</a>', url, printable(task_id)
    )
