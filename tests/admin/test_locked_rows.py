"""`LockedRowAdminMixin`: a row is neither saved nor deleted while a task may work on it."""

from __future__ import annotations

import pytest
from django.test import Client

from django_tasklock import Lease
from tests.admin.conftest import UserWith, taken, words_of
from tests.app.models import Job
from tests.conftest import UseRedis
from tests.findings import guard
from tests.mailroom import Mailroom
from tests.proxy import CutProxy

pytestmark = pytest.mark.django_db(transaction=True)
JOBS = "/admin/app/job/"
SAID = "Nothing is saved or deleted here until it ends."


@pytest.fixture
def editor(client_with: UserWith) -> Client:
    return client_with("view_job", "change_job", "delete_job")


def held(room: Mailroom, job: Job) -> Lease:
    task = room.task(guard=guard())
    return taken(f"job:{job.pk}", task=task.name, task_id="id-1")


def test_a_locked_row_is_neither_saved_nor_deleted(room: Mailroom, editor: Client) -> None:
    job = Job.objects.create()
    lease = held(room, job)
    page, delete = f"{JOBS}{job.pk}/change/", f"{JOBS}{job.pk}/delete/"
    ticked = {"action": "delete_selected", "_selected_action": [str(job.pk)], "post": "yes"}
    listed = {
        "form-TOTAL_FORMS": "1", "form-INITIAL_FORMS": "1", "form-0-id": str(job.pk),
        "form-0-status": "done", "_save": "Save",
    }  # fmt: skip
    assert SAID in words_of(editor.get(page))
    for response in (
        editor.post(page, {"status": "done"}),
        editor.post(JOBS, listed),
        editor.post(delete, {"post": "yes"}),
        editor.post(JOBS, ticked),
    ):
        assert SAID in words_of(response)
    assert Job.objects.get().status == job.status

    lease.release()
    assert SAID not in words_of(editor.get(page))
    assert editor.post(JOBS, listed).status_code == 302
    assert Job.objects.get().status == "done"
    assert editor.post(delete, {"post": "yes"}).status_code == 302
    assert not Job.objects.exists()


def test_not_known_is_not_free(
    room: Mailroom, use_redis: UseRedis, cut_proxy: CutProxy, editor: Client
) -> None:
    use_redis(cut_proxy.url)
    job = Job.objects.create()
    room.task(guard=guard())
    with cut_proxy.away():
        response = editor.post(f"{JOBS}{job.pk}/delete/", {"post": "yes"})
        assert "is unavailable" in words_of(response)
        assert "a task may be working on the row" in words_of(response)
    assert Job.objects.get() == job
