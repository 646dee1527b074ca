"""Locks that cool, in the admin."""

from __future__ import annotations

import pytest
from django.test import Client

from django_tasklock import lock
from tests.admin.test_admin import (
    LIST,
    UserWith,
    change_url,
    client_with,
    on_redis,
    operator,
    page_of,
    words_of,
)
from tests.admin.test_admin_guarded import MakeTask, job_url, make_task
from tests.app.models import Job
from tests.steps import holder

__all__ = ["client_with", "make_task", "on_redis", "operator"]
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning"),
]


@pytest.fixture(autouse=True)
def charged(on_redis: None) -> None:
    with lock("pay:7", hold_at_least=600):
        pass


def test_list_and_page_call_it_cooling(operator: Client) -> None:
    for url in (LIST, change_url(holder("pay:7"))):
        page = page_of(operator.get(url))
        assert '<span class="tasklock-life tasklock-cooling">cooling</span>' in page
        assert "tasklock-gone" not in page


def test_filter_by_state(operator: Client) -> None:
    with lock("pay:8"):
        words = words_of(operator.get(LIST, {"state": "cooling"}))
        assert "pay:7" in words
        assert "pay:8" not in words


def test_a_row_may_be_changed_while_its_lock_cools(
    client_with: UserWith, make_task: MakeTask
) -> None:
    """Nobody works on it."""
    editor = client_with("view_job", "change_job")
    make_task("job:{job_id}")
    row = Job.objects.create(status="done")
    with lock(f"job:{row.pk}", cooldown=600):
        assert "Nothing is saved" in words_of(editor.get(job_url(row)))
    assert holder(f"job:{row.pk}").cooling
    assert "Nothing is saved" not in words_of(editor.get(job_url(row)))
