"""``lock_view`` in Django REST framework, with its permissions, exceptions and renderers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.test import Client
from django.urls import include, path
from django.utils.decorators import method_decorator
from rest_framework.authentication import SessionAuthentication
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound
from rest_framework.parsers import JSONParser
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_tasklock import lock, locks
from django_tasklock.views import lock_view
from tests.conftest import UseCaches, UseRedis
from tests.steps import LONG
from tests.store_cases import redis_cache

pytestmark = [pytest.mark.urls(__name__), pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def redis(use_redis: UseRedis) -> None:
    use_redis()


class Lines(BaseRenderer):  # type: ignore[misc]
    """A renderer of the site's own."""

    media_type = "text/x-lines"
    format = "lines"

    def render(self, data: Any, *_: Any) -> str:
        return "".join(f"{key}={value}\n" for key, value in data.items())


class OnlyForUsers:
    authentication_classes = (SessionAuthentication,)
    permission_classes = (IsAuthenticated,)
    parser_classes = (JSONParser,)
    renderer_classes = (JSONRenderer, Lines)


def under_lock(pk: Any) -> Response:
    return Response({"paid": pk, "held": locks.is_locked(f"order:{pk}")})


class Orders(OnlyForUsers, ViewSet):  # type: ignore[misc]
    @lock_view("order:{pk}", ttl=LONG)
    def update(self, request: Request, pk: str) -> Response:
        if pk == "404":
            raise NotFound("no such order")
        if pk == "500":
            raise LookupError("a bug")
        return under_lock(pk)

    @action(detail=True, methods=["post"])  # type: ignore[untyped-decorator]
    @lock_view("order:{pk}", ttl=LONG, status=423, retry_after=7)
    def pay(self, request: Request, pk: str) -> Response:
        return under_lock(pk)

    @action(detail=True, methods=["post"])  # type: ignore[untyped-decorator]
    @lock_view("user:{request.user.pk}:{request.data[order]}", ttl=LONG)
    def tell(self, request: Request, pk: str) -> Response:
        return Response({"names": [info.name for info in locks.list()]})


@method_decorator(lock_view("order:{pk}", ttl=LONG), name="put")
class OneOrder(OnlyForUsers, APIView):  # type: ignore[misc]
    def put(self, request: Request, pk: str) -> Response:
        return under_lock(pk)


@method_decorator(lock_view("order:{pk}", ttl=LONG), name="dispatch")
class Whole(OnlyForUsers, APIView):  # type: ignore[misc]
    def put(self, request: Request, pk: str) -> Response:
        return under_lock(pk)


router = SimpleRouter()
router.register("orders", Orders, basename="order")
urlpatterns = [
    path("", include(router.urls)),
    path("one/<str:pk>/", OneOrder.as_view()),
    path("whole/<str:pk>/", Whole.as_view()),
]

VIEWS = {"view set": "/orders/7/", "class": "/one/7/", "dispatch": "/whole/7/"}


@pytest.fixture
def client() -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(User.objects.create_user("ada"))
    return client


@pytest.mark.parametrize("url", VIEWS.values(), ids=VIEWS)
def test_view_runs_under_the_lock(client: Client, url: str) -> None:
    assert client.put(url).json() == {"paid": "7", "held": True}
    assert not locks.is_locked("order:7")


@pytest.mark.parametrize("accept", ["", "*/*", "application/json"])
@pytest.mark.parametrize("url", ["/orders/7/", "/one/7/"])
def test_refusal_is_rendered_by_the_view(client: Client, url: str, accept: str) -> None:
    with lock("order:7", ttl=LONG):
        refused = client.put(url, headers={"accept": accept} if accept else {})
    assert refused.status_code == 409
    assert refused["Content-Type"] == "application/json"
    assert refused.json().keys() == {"detail"}
    assert 1 <= int(refused["Retry-After"]) <= LONG


def test_refusal_is_rendered_as_the_client_asks(client: Client) -> None:
    with lock("order:7", ttl=LONG):
        refused = client.put("/orders/7/", headers={"accept": "text/x-lines"})
    assert refused["Content-Type"].startswith("text/x-lines")
    assert refused.content.startswith(b"detail=")


def test_action_refuses_as_its_options_say(client: Client) -> None:
    with lock("order:7", ttl=LONG):
        refused = client.post("/orders/7/pay/")
    assert (refused.status_code, refused["Retry-After"]) == (423, "7")
    assert client.post("/orders/7/pay/").json()["held"] is True


def test_name_may_come_from_the_user_and_the_data(client: Client) -> None:
    said = client.post("/orders/7/tell/", json.dumps({"order": 9}), "application/json")
    assert said.json() == {"names": [f"user:{User.objects.get().pk}:9"]}


def test_permission_is_asked_before_the_lock() -> None:
    anybody = Client()
    with lock("order:7", ttl=LONG):
        assert anybody.put("/orders/7/").status_code == 403
        assert anybody.put("/one/7/").status_code == 403
        # but a lock around `dispatch` is asked before
        assert anybody.put("/whole/7/").status_code == 409
    assert anybody.put("/whole/7/").status_code == 403


@pytest.mark.parametrize("number", [404, 500])
def test_error_of_the_view_is_its_own_and_the_lock_is_free(client: Client, number: int) -> None:
    answer = client.put(f"/orders/{number}/")
    assert answer.status_code == number
    if number == 404:
        assert answer.json() == {"detail": "no such order"}
    assert not locks.is_locked(f"order:{number}")


def test_outage_is_rendered_by_the_view(use_caches: UseCaches, client: Client) -> None:
    use_caches({"default": redis_cache("redis://127.0.0.1:1/0")}, {"default": {}})
    called: list[Request] = []
    view: Any = lock_view("x", outage_status=503)(called.append)
    answer = view(Request(HttpRequest()))
    assert answer.status_code == 503
    assert answer.data.keys() == {"detail"}
    assert client.put("/orders/7/").status_code == 500
    assert called == []
