"""The views that Prometheus reads, and who may read them."""

from __future__ import annotations

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client, override_settings
from django.urls import include, path

from tests.conftest import UseRedis
from tests.contrib.conftest import Count
from tests.steps import taken

TOKEN = "a-token-of-the-tests"
METRICS, STATE = "/metrics/", "/metrics/locks/"

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.urls(__name__),
    pytest.mark.usefixtures("counted"),
]


def _urls() -> list[object]:
    try:
        return [path("metrics/", include("django_tasklock.contrib.prometheus.urls"))]
    except ImportError:  # The fixture says so.
        return []


urlpatterns = _urls()


@pytest.fixture(autouse=True)
def on_redis(use_redis: UseRedis) -> None:
    use_redis()


@pytest.mark.parametrize("page", [METRICS, STATE])
def test_nobody_sees_metrics_without_a_token_or_the_permission(page: str) -> None:
    client = Client()
    assert client.get(page).status_code == 403
    client.force_login(User.objects.create_user("staff", is_staff=True))
    assert client.get(page).status_code == 403
    with override_settings(TASKLOCK_METRICS={"TOKEN": TOKEN}):
        for given in ("", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN):
            answer = client.get(page, headers={"Authorization": given})
            assert answer.status_code == 403, given


@pytest.mark.parametrize("page", [METRICS, STATE])
def test_a_token_opens_them(page: str) -> None:
    with override_settings(TASKLOCK_METRICS={"TOKEN": TOKEN}):
        answer = Client().get(page, headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "no-store" in answer.headers["Cache-Control"]


@pytest.mark.parametrize("page", [METRICS, STATE])
def test_a_token_opens_them_on_a_site_that_requires_a_login(page: str) -> None:
    requires_login = "django.contrib.auth.middleware.LoginRequiredMiddleware"
    with override_settings(
        MIDDLEWARE=[*settings.MIDDLEWARE, requires_login], TASKLOCK_METRICS={"TOKEN": TOKEN}
    ):
        assert Client().get(page).status_code == 403
        answer = Client().get(page, headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200


@pytest.mark.parametrize("page", [METRICS, STATE])
def test_the_permission_to_see_locks_opens_them(page: str) -> None:
    user = User.objects.create_user("operator")
    user.user_permissions.add(Permission.objects.get(codename="view_lock"))
    client = Client()
    client.force_login(user)
    assert client.get(page).status_code == 200
    assert client.post(page).status_code == 405


def test_counters_and_state_are_two_pages(counted: Count) -> None:
    taken("video:1")
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    counters = client.get(METRICS).content.decode()
    state = client.get(STATE).content.decode()
    assert "tasklock_acquires_total{" in counters
    assert "tasklock_locks{" not in counters
    assert 'tasklock_locks{store="default",state="held"} 1' in state
    assert "tasklock_acquires_total" not in state
    assert counted("acquires_total") == 1
