"""The admin beside other people's classes, without permissions, and beside a silent store."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.db import models
from django.test import Client, RequestFactory
from django.test.utils import isolate_apps

from django_tasklock import locks
from django_tasklock.admin import LockedRowAdminMixin
from django_tasklock.operators.guarded import locks_of
from tests.admin.test_admin import (
    LIST,
    UserWith,
    acquire,
    boxes_of,
    client_with,
    on_redis,
    operator,
    tick,
    words_of,
)
from tests.admin.test_admin_guarded import MakeTask, make_task
from tests.app.models import Job
from tests.conftest import UseCaches, UseRedis
from tests.steps import silent

__all__ = ["client_with", "make_task", "on_redis", "operator"]

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning"),
]


class HouseAdmin(admin.ModelAdmin):
    """A base admin of a company's own."""

    def get_form(self, *args: Any, **kwargs: Any) -> Any:
        form: Any = super().get_form(*args, **kwargs)
        form.base_fields["status"].disabled = True
        form.base_fields.pop("result_file", None)
        return form


def test_the_mixin_keeps_what_a_base_admin_has_done_to_the_forms_fields(admin_user: Any) -> None:
    class JobAdmin(LockedRowAdminMixin, HouseAdmin):
        pass

    request = RequestFactory().get("/")
    request.user = admin_user
    form: Any = JobAdmin(Job, admin.site).get_form(request)
    assert form.base_fields["status"].disabled
    assert "result_file" not in form.base_fields


@isolate_apps("tests.app")
def test_the_row_of_a_child_is_its_parents_row_too(
    use_redis: UseRedis, make_task: MakeTask
) -> None:
    class Film(Job):
        job = models.OneToOneField(Job, models.CASCADE, parent_link=True, primary_key=True)

        class Meta:
            app_label = "app"

    use_redis()
    make_task("job:{job_id}")
    lease = locks.acquire("job:7", ttl=60)
    assert lease is not None
    film = Film(pk=7, job_id=7)
    film.id = 7
    assert [info.name for info in locks_of(film)] == ["job:7"]
    lease.release()


@pytest.mark.parametrize("page", ["change", "history"])
def test_who_may_not_see_locks_has_no_store_asked(
    on_redis: None, client_with: UserWith, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    asked = silent(monkeypatch, "get")
    url = f"/admin/django_tasklock/lock/default_3Ax/{page}/"
    assert client_with().get(url).status_code == 403
    assert asked == []


def test_a_search_asks_a_silent_store_once(
    on_redis: None, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = silent(monkeypatch, "count", "list", "search", "get")
    admin_client.get("/admin/django_tasklock/lock/?q=x")
    assert asked == ["count"]


def test_a_store_that_is_not_there_has_no_number_of_locks(on_redis: None, operator: Client) -> None:
    acquire("video:1")
    for asked in ({"store": "gone"}, {"store": "gone", "q": "video"}, {"store": "gone", "p": "2"}):
        words = words_of(operator.get(LIST, asked, follow=True))
        assert "'gone'" in words, asked
        assert " 0 locks" not in words, asked
    assert operator.get(f"{LIST}live/", {"store": "gone"}).json()["problems"]
    assert "1 lock " in words_of(operator.get(LIST, {"store": "default"}))


@pytest.mark.parametrize("held", [("default", "other"), ("default",)])
def test_all_of_the_list_are_not_called_all_if_a_store_does_not_answer(
    use_caches: UseCaches, operator: Client, monkeypatch: pytest.MonkeyPatch, held: tuple[str, ...]
) -> None:
    # Given a list of two stores, of which one stops to answer
    memory = {"BACKEND": "django_tasklock.stores.memory.MemoryStore"}
    use_caches({}, {"default": memory, "other": memory})
    for store in held:
        assert locks.using(store).acquire(f"in-{store}", ttl=600)
    boxes = boxes_of(operator.get(LIST))
    with monkeypatch.context() as outage:
        silent(outage, "count", "list")

        # When all of the list are to be cleared
        asked = tick(operator, boxes, select_across="1")

    # I expect to be told, on the page that asks and where there is nothing to ask about
    words = words_of(asked if asked.status_code == 200 else operator.get(asked["Location"]))
    assert ("in-other" in words) == ("other" in held)
    assert "The store “default” is unavailable" in words
