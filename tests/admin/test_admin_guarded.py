"""The admin of rows that tasks work on: a lock's row, a row's lock, and the page "Health"."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import current_app
from django.contrib import admin
from django.core.cache import cache
from django.test import Client, RequestFactory
from django.utils.translation import override

from django_tasklock import Lease, locks
from django_tasklock.celery import LockedTask
from django_tasklock.guards import StatusGuard
from django_tasklock.operators import work
from django_tasklock.operators.guarded import guarded_row, locks_of
from tests.admin.test_admin import (
    LIST,
    UserWith,
    a_store_down,
    acquire,
    change_url,
    client_with,
    on_redis,
    operator,
    page_of,
    words_of,
)
from tests.app.models import Job
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.steps import orphan
from tests.store_cases import own_prefix, redis_cache

__all__ = ["a_store_down", "client_with", "on_redis", "operator"]
pytestmark = [
    pytest.mark.django_db,
    # Celery 5.7 warns of its own when a task is bound to an app.
    pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning"),
]
HEALTH = f"{LIST}health/"
MakeTask = Callable[..., Any]


@pytest.fixture
def make_task() -> Iterator[MakeTask]:
    """``make_task(lock_name, **guard)``: a guarded task on `Job`, until the test ends."""
    app: Any = current_app
    names: list[str] = []

    def make(lock_name: Any, **options: Any) -> Any:
        names.append(f"tests.guarded.{secrets.token_hex(4)}")
        guard = StatusGuard(
            Job, pk="job_id", source="queued", to="processing", done="done", failed="failed",
            **options,
        )  # fmt: skip

        def work(self: Any, job_id: Any, much: int = 1) -> None:
            raise AssertionError("not to be run")

        return app.task(
            work, name=names[-1], base=LockedTask, bind=True, shared=False, lazy=False,
            lock_name=lock_name, guard=guard,
        )  # fmt: skip

    yield make
    app.finalize()
    for name in names:
        app.tasks.pop(name, None)


def held_by(task: Any, name: str) -> Lease:
    return acquire(name, task=task.name, task_id="id-1")


def info_of(name: str) -> Any:
    info = locks.get(name)
    assert info is not None
    return info


# ------------------------------------------------------------------------------ a lock's row


@pytest.mark.parametrize(
    "lock_name", ["job:{job_id}", "{job_id}", "job-{job_id}.mp4", "a:{job_id}:b"]
)
def test_row_is_found_by_the_locks_name(
    on_redis: None, make_task: MakeTask, lock_name: str
) -> None:
    task = make_task(lock_name)
    Job.objects.create()
    job = Job.objects.create()
    name = lock_name.format(job_id=job.pk)
    held_by(task, name)
    assert guarded_row(info_of(name)) == job
    assert [info.name for info in locks_of(job)] == [name]


def test_row_is_found_by_the_fence_where_its_name_does_not_tell_it(
    on_redis: None, make_task: MakeTask
) -> None:
    # Given a lock whose name is a digest of the arguments, one of which is not the default
    task = make_task(None, fence_field="lock_fence")
    name = task.lock_name_of((), {"job_id": 1, "much": 2})
    lease = held_by(task, name)
    assert guarded_row(info_of(name)) is None
    job = Job.objects.create(status="processing", lock_fence=lease.fence)
    assert guarded_row(info_of(name)) == job


def test_no_row_without_a_guard_or_for_another_name(on_redis: None, make_task: MakeTask) -> None:
    task = make_task("job:{job_id}")
    job = Job.objects.create()
    acquire("no:task")
    acquire("another:task", task="tests.unknown")
    held_by(task, f"other:{job.pk}")
    held_by(task, "job:99999999")
    for name in ("no:task", "another:task", f"other:{job.pk}", "job:99999999"):
        assert guarded_row(info_of(name)) is None


@pytest.fixture
def broken_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task's module needs what only its worker has."""

    def load() -> None:
        raise ModuleNotFoundError("No module named 'torch'")

    monkeypatch.setattr(work, "loaders", [load])


def test_detail_links_to_the_row_and_says_what_the_command_says(
    on_redis: None, make_task: MakeTask, client_with: UserWith
) -> None:
    operator = client_with("view_lock", "delete_lock", "view_job")
    job = Job.objects.create()
    lease = held_by(make_task("job:{job_id}"), f"job:{job.pk}")
    response = operator.get(change_url(lease))
    assert f'<a href="/admin/app/job/{job.pk}/change/">job {job.pk} (queued)</a>' in page_of(
        response
    )
    words = words_of(response)
    assert f"$ manage.py locks show -- job:{job.pk}" in words
    assert f"would clear job:{job.pk}, held by pid" in words
    assert "waiters: 0" in words
    assert "token:" not in words


def test_detail_does_not_say_what_a_row_is_to_who_may_not_see_it(
    on_redis: None, make_task: MakeTask, operator: Client
) -> None:
    job = Job.objects.create()
    page = page_of(operator.get(change_url(held_by(make_task("job:{job_id}"), f"job:{job.pk}"))))
    assert f"app.Job {job.pk}" in page
    assert "(queued)" not in page
    assert job_url(job) not in page


def test_detail_without_a_row_where_a_module_cannot_be_imported(
    on_redis: None,
    make_task: MakeTask,
    operator: Client,
    broken_import: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = Job.objects.create()
    lease = held_by(make_task("job:{job_id}"), f"job:{job.pk}")
    words = words_of(operator.get(change_url(lease)))
    assert f"job:{job.pk}" in words
    assert f"app.Job {job.pk}" not in words
    assert f"the row of the lock job:{job.pk} cannot be found out" in caplog.messages


# ------------------------------------------------------------------------------ a row's lock


def job_url(job: Job) -> str:
    return f"/admin/app/job/{job.pk}/change/"


@pytest.fixture
def editor(client_with: UserWith) -> Client:
    return client_with("view_job", "change_job", "add_job")


FORM = {"status": "done", "done_count": "7", "lock_fence": "", "result_file": ""}


def test_row_that_is_locked_says_so_and_is_not_saved(
    on_redis: None, make_task: MakeTask, editor: Client
) -> None:
    job = Job.objects.create()
    task = make_task("job:{job_id}")
    lease = held_by(task, f"job:{job.pk}")

    words = words_of(editor.get(job_url(job)))
    assert f"Locked by {lease.owner.host}:{lease.owner.pid}, task {task.name}" in words

    refused = editor.post(job_url(job), FORM)
    assert f"lock “job:{job.pk}”" in words_of(refused)
    assert 'value="7"' in page_of(refused)  # what was typed is not lost
    job.refresh_from_db()
    assert (job.status, job.done_count) == ("queued", 0)

    lease.release()
    assert "Locked by" not in words_of(editor.get(job_url(job)))
    assert editor.post(job_url(job), FORM).status_code == 302
    job.refresh_from_db()
    assert (job.status, job.done_count) == ("done", 7)


def test_row_that_is_locked_is_not_saved_from_the_list(
    on_redis: None, make_task: MakeTask, editor: Client
) -> None:
    job = Job.objects.create()
    lease = held_by(make_task("job:{job_id}"), f"job:{job.pk}")
    form = {
        "form-TOTAL_FORMS": "1", "form-INITIAL_FORMS": "1", "form-0-id": str(job.pk),
        "form-0-status": "done", "_save": "Save",
    }  # fmt: skip
    refused = editor.post("/admin/app/job/", form)
    assert "Locked by" in words_of(refused)
    job.refresh_from_db()
    assert job.status == "queued"
    lease.release()
    assert editor.post("/admin/app/job/", form).status_code == 302
    job.refresh_from_db()
    assert job.status == "done"


def test_row_of_the_list_that_was_not_changed_may_be_locked(
    on_redis: None, make_task: MakeTask, editor: Client
) -> None:
    changed, untouched = Job.objects.create(), Job.objects.create()
    held_by(make_task("job:{job_id}"), f"job:{untouched.pk}")
    form = {
        "form-TOTAL_FORMS": "2", "form-INITIAL_FORMS": "2", "_save": "Save",
        "form-0-id": str(untouched.pk), "form-0-status": "queued",
        "form-1-id": str(changed.pk), "form-1-status": "done",
    }  # fmt: skip
    assert editor.post("/admin/app/job/", form).status_code == 302
    changed.refresh_from_db()
    assert changed.status == "done"


def test_an_outage_is_said_once_for_all_changed_rows_of_the_list(
    use_redis: UseRedis, own_redis_server: RedisServer, make_task: MakeTask, editor: Client
) -> None:
    use_redis(own_redis_server.url)
    make_task("job:{job_id}")
    jobs = [Job.objects.create() for _ in range(5)]
    form = {"form-TOTAL_FORMS": "5", "form-INITIAL_FORMS": "5", "_save": "Save"}
    for i, job in enumerate(jobs):
        form |= {f"form-{i}-id": str(job.pk), f"form-{i}-status": "done"}
    own_redis_server.kill()
    refused = editor.post("/admin/app/job/", form)
    assert words_of(refused).count("The store “default” is unavailable") == 1
    assert not Job.objects.filter(status="done").exists()


def test_new_row_that_has_its_key_already_is_saved(on_redis: None, make_task: MakeTask) -> None:
    # Given a lock whose name is that of a row to come
    held_by(make_task("job:{job_id}"), "job:77")
    form_class = admin.site.get_model_admin(Job).get_form(RequestFactory().get("/"))
    assert form_class(FORM, instance=Job(pk=77)).is_valid()
    held = Job.objects.create(pk=77)
    assert not form_class(FORM, instance=held).is_valid()


def work_of(model: str, store: str = "default") -> Any:
    """The guarded work of a task that is not what it should be."""
    guard = StatusGuard(model, source="queued", to="processing", done="done")
    return SimpleNamespace(guard=guard, task="broken", store=store, names_of=lambda pk: ["name"])


def test_wrong_guard_of_another_task_is_no_matter(
    on_redis: None, make_task: MakeTask, editor: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [work_of("app.Nothing"), work_of("auth.User", "typo")]
    monkeypatch.setattr(work, "sources", [lambda: broken, *work.sources])
    job = Job.objects.create()
    lease = held_by(make_task("job:{job_id}"), f"job:{job.pk}")
    assert "Locked by" in words_of(editor.get(job_url(job)))
    lease.release()
    assert editor.post(job_url(job), FORM).status_code == 302


def test_row_is_not_saved_where_its_tasks_store_is_not_known(
    on_redis: None, editor: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "sources", [lambda: [work_of("app.Job", "typo")]])
    assert_not_saved(editor, "no lock store 'typo'")


def test_row_is_not_saved_where_a_module_cannot_be_imported(
    on_redis: None, editor: Client, broken_import: None
) -> None:
    assert_not_saved(editor, "A module with tasks cannot be imported")


def assert_not_saved(editor: Client, why: str) -> None:
    job = Job.objects.create()
    assert why in words_of(editor.get(job_url(job)))
    assert why in words_of(editor.post(job_url(job), FORM))
    job.refresh_from_db()
    assert job.status == "queued"


def test_new_rows_and_rows_of_no_task_are_saved(
    on_redis: None, make_task: MakeTask, editor: Client
) -> None:
    assert editor.post("/admin/app/job/add/", FORM).status_code == 302
    job = Job.objects.get()
    acquire(f"job:{job.pk}")  # of no task
    assert editor.post(job_url(job), FORM).status_code == 302


def test_row_is_not_saved_while_nobody_knows_whether_it_is_locked(
    use_redis: UseRedis, own_redis_server: RedisServer, make_task: MakeTask, editor: Client
) -> None:
    use_redis(own_redis_server.url)
    job = Job.objects.create()
    make_task("job:{job_id}")
    own_redis_server.kill()
    assert "The store “default” is unavailable" in words_of(editor.get(job_url(job)))
    assert "The store “default” is unavailable" in words_of(editor.post(job_url(job), FORM))
    job.refresh_from_db()
    assert job.status == "queued"


# ------------------------------------------------------------------------------ health


def test_health_says_what_the_doctor_says(
    on_redis: None,
    make_task: MakeTask,
    operator: Client,
) -> None:
    make_task("job:{job_id}")
    job = Job.objects.create(status="processing")
    cache.add("lock:forever", 1, timeout=None)
    orphan("orphan")

    words = words_of(operator.get(HEALTH))

    assert f"app.Job {job.pk} The row is “processing”, and nobody holds its lock." in words
    assert "manage.py locks doctor --requeue" in words
    assert "orphan It is held by a process that is gone." in words
    assert "manage.py locks clear -- forever" in words


def test_health_of_a_store_that_is_down_and_of_one_that_is_not(
    a_store_down: None, operator: Client
) -> None:
    cache.add("lock:forever", 1, timeout=None)
    words = words_of(operator.get(HEALTH))
    assert "server serious dead The store “dead” is unavailable: " in words
    assert "forever" in words


def test_health_has_no_english_in_another_language(
    use_caches: UseCaches,
    redis_server: RedisServer,
    own_redis_server: RedisServer,
    make_task: MakeTask,
    operator: Client,
) -> None:
    # Given a row whose lock cannot be told, a store that is down, and one without a list
    memory = "django.core.cache.backends.locmem.LocMemCache"
    use_caches(
        {
            "default": redis_cache(redis_server.url),
            "dead": redis_cache(own_redis_server.url),
            "memory": {"BACKEND": memory, "LOCATION": own_prefix()},
        },
        {"default": {}, "dead": {"CACHE": "dead"}, "memory": {"CACHE": "memory"}},
    )
    task = make_task("job:{job_id}:{much}")
    Job.objects.create(status="processing")
    own_redis_server.kill()

    with override("zh-hans"):
        words = words_of(operator.get(HEALTH))

    for word in ("不可用：", "无法列出它的锁", "无法得知其锁名称", "严重", "提示", task.name):
        assert word in words
    # Only what a check or a client library says is English
    for english in ("is unavailable", "not answer", "cannot", "Make the lock_name", "serious"):
        assert english not in words
