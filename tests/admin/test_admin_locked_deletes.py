"""A row is not deleted in the admin while its lock is held."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.test import Client, RequestFactory

from django_tasklock import locks
from django_tasklock.admin import LockedRowAdminMixin
from django_tasklock.guards import StatusGuard
from django_tasklock.operators import work
from django_tasklock.operators.guarded import locks_of
from django_tasklock.operators.work import Work, works
from tests.admin.test_admin import UserWith, acquire, client_with, on_redis, words_of
from tests.admin.test_admin_guarded import (
    MakeTask,
    broken_import,
    held_by,
    job_url,
    make_task,
)
from tests.app.models import Job
from tests.conftest import UseRedis
from tests.servers import RedisServer
from tests.steps import Traffic

__all__ = ["broken_import", "client_with", "make_task", "on_redis"]
pytestmark = [
    pytest.mark.django_db,
    # Celery 5.7 warns of its own when a task is bound to an app.
    pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning"),
]
LIST = "/admin/app/job/"


@pytest.fixture
def remover(client_with: UserWith) -> Client:
    return client_with("view_job", "change_job", "delete_job")


def delete_url(job: Job) -> str:
    return job_url(job).replace("/change/", "/delete/")


def delete_selected(client: Client, *jobs: Job) -> Any:
    selected = [str(job.pk) for job in jobs]
    form = {"action": "delete_selected", "_selected_action": selected, "post": "yes"}
    return client.post(LIST, form)


def test_row_that_is_locked_is_not_deleted(
    on_redis: None, make_task: MakeTask, remover: Client
) -> None:
    job = Job.objects.create()
    lease = held_by(make_task("job:{job_id}"), f"job:{job.pk}")

    for answer in (
        remover.get(delete_url(job)),
        remover.post(delete_url(job), {"post": "yes"}),
    ):
        words = words_of(answer)
        assert f"lock “job:{job.pk}”" in words
        assert "Nothing is saved or deleted here until it ends." in words
    assert Job.objects.filter(pk=job.pk).exists()
    assert not LogEntry.objects.exists()

    lease.release()
    assert "Locked by" not in words_of(remover.get(delete_url(job)))
    assert remover.post(delete_url(job), {"post": "yes"}).status_code == 302
    assert not Job.objects.exists()


def test_none_of_those_that_are_ticked_is_deleted_while_one_is_locked(
    on_redis: None, make_task: MakeTask, remover: Client
) -> None:
    first, locked = Job.objects.create(), Job.objects.create()
    lease = held_by(make_task("job:{job_id}"), f"job:{locked.pk}")

    words = words_of(delete_selected(remover, first, locked))
    assert f"lock “job:{locked.pk}”" in words
    assert f"lock “job:{first.pk}”" not in words
    assert Job.objects.count() == 2
    assert not LogEntry.objects.exists()

    lease.release()
    assert delete_selected(remover, first, locked).status_code == 302
    assert not Job.objects.exists()


def names_of(work: Work, job: Job) -> list[str]:
    return list(work.names_of(job.pk)) if work.guard.model is Job else []


def test_locks_of_many_rows_are_asked_for_together(
    on_redis: None, make_task: MakeTask, redis_server: RedisServer
) -> None:
    make_task("job:{job_id}")
    jobs = [Job.objects.create() for _ in range(50)]
    acquire(f"job:{jobs[7].pk}")
    # Tasks of other tests may work on such rows too, until they are collected.
    names = {name for work in works() for job in jobs for name in names_of(work, job)}
    assert len(names) >= len(jobs)
    traffic = Traffic(redis_server)
    assert [info.name for info in locks_of(*jobs)] == [f"job:{jobs[7].pk}"]
    assert traffic.commands()["exists"] == len(names)
    assert traffic.scripts() < 10  # Who holds the one: not a script for each row.


def test_row_that_was_locked_after_the_page_had_asked_is_not_deleted(
    on_redis: None, make_task: MakeTask
) -> None:
    """What an action of the project's own calls as well."""
    job = Job.objects.create()
    held_by(make_task("job:{job_id}"), f"job:{job.pk}")
    jobs, request = admin.site.get_model_admin(Job), RequestFactory().post("/")
    with pytest.raises(PermissionDenied, match="Locked by"):
        jobs.delete_model(request, job)
    with pytest.raises(PermissionDenied, match="Locked by"):
        jobs.delete_queryset(request, Job.objects.all())
    assert Job.objects.get() == job


def test_row_is_not_deleted_where_a_module_cannot_be_imported(
    on_redis: None, remover: Client, broken_import: None
) -> None:
    job = Job.objects.create()
    words = words_of(remover.post(delete_url(job), {"post": "yes"}))
    assert "A module with tasks cannot be imported" in words
    assert Job.objects.get() == job


def test_row_is_not_deleted_while_nobody_knows_whether_it_is_locked(
    use_redis: UseRedis, own_redis_server: RedisServer, make_task: MakeTask, remover: Client
) -> None:
    use_redis(own_redis_server.url)
    job = Job.objects.create()
    make_task("job:{job_id}")
    own_redis_server.kill()
    words = words_of(remover.post(delete_url(job), {"post": "yes"}))
    assert "The store “default” is unavailable" in words
    assert Job.objects.get() == job


class TestInline:
    """Rows on the page of what they belong to."""

    class PermissionInline(LockedRowAdminMixin, admin.TabularInline):
        model = Permission
        extra = 0

    @pytest.fixture
    def formset(
        self, on_redis: None, monkeypatch: pytest.MonkeyPatch, admin_user: Any
    ) -> Callable[..., Any]:
        """``formset(**more)``: the rows of a content type as the page posts them."""
        guard = StatusGuard("auth.Permission", pk="pk", field="name", source="a", to="b", done="c")
        task = SimpleNamespace(
            guard=guard, task="task", store="default", names_of=lambda pk: [f"permission:{pk}"]
        )
        work.load()  # What makes itself known there must not do so in our list.
        monkeypatch.setattr(work, "sources", [lambda: [task]])
        parent = ContentType.objects.get_for_model(Job)
        self.row = Permission.objects.filter(content_type=parent).order_by("pk")[0]
        inline = self.PermissionInline(ContentType, admin.site)
        request = RequestFactory().post("/")
        request.user = admin_user

        def make(**more: str) -> Any:
            data = {
                "permission_set-TOTAL_FORMS": "1",
                "permission_set-INITIAL_FORMS": "1",
                "permission_set-0-id": str(self.row.pk),
                "permission_set-0-content_type": str(parent.pk),
                "permission_set-0-name": self.row.name,
                "permission_set-0-codename": self.row.codename,
                **{f"permission_set-0-{field}": value for field, value in more.items()},
            }
            rows = Permission.objects.filter(pk=self.row.pk)
            return inline.get_formset(request, parent)(data, instance=parent, queryset=rows)

        return make

    def test_row_that_is_locked_is_neither_saved_nor_deleted(self, formset: Any) -> None:
        lease = acquire(f"permission:{self.row.pk}")
        changed, deleted = formset(name="another"), formset(DELETE="on")
        assert not changed.is_valid()
        assert "Locked by" in str(changed.non_form_errors())
        assert not deleted.is_valid()
        assert "Locked by" in str(deleted.non_form_errors())
        assert formset().is_valid()  # nothing of it changes

        # A user who may delete and not change: for Django, nothing has changed then
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.PermissionInline, "has_change_permission", lambda *_: False)
            deleted = formset(DELETE="on")
            assert not deleted.forms[0].has_changed()
            assert not deleted.is_valid()

        lease.release()
        assert formset(name="another").is_valid()
        deleted = formset(DELETE="on")
        assert deleted.is_valid()
        deleted.save()
        assert not Permission.objects.filter(pk=self.row.pk).exists()
        assert locks.count() == 0
