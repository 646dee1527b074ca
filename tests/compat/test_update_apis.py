"""What `django_tasklock._compat.django_updates` uses of Django is still there."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_tasklock._compat import django_updates
from tests.app.models import Job

pytestmark = pytest.mark.django_db(transaction=True)


def change(pk: Any, fence: int | None) -> django_updates.Made:
    rows = Job.objects.filter(pk=pk, status__in=["queued", "failed"])
    return rows, {"status": "working", "lock_fence": fence}


def test_kept_update_changes_its_row_alone() -> None:
    kept = django_updates.kept_update(change, "default", int, fenced=True)
    assert kept is not None
    mine, other = Job.objects.create(), Job.objects.create()
    assert kept.run("default", mine.pk, 7) == 1
    assert kept.run("default", mine.pk, 8) == 0
    for row in (mine, other):
        row.refresh_from_db()
    assert (mine.status, mine.lock_fence, other.status) == ("working", 7, "queued")


def test_kept_update_is_what_django_would_send() -> None:
    kept = django_updates.kept_update(change, "default", int, fenced=True)
    assert kept is not None
    row = Job.objects.create()
    with CaptureQueriesContext(connections["default"]) as sent:
        kept.run("default", row.pk, 7)
        rows, changes = change(row.pk, 7)
        rows.update(**changes)
    ours, djangos = (query["sql"] for query in sent.captured_queries)
    assert ours == djangos
