"""``lock_view`` on every kind of view, answered by Django's own handler."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from rest_framework.decorators import api_view
from rest_framework.exceptions import NotFound
from rest_framework.permissions import IsAuthenticated
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from django_tasklock import LeaseLost, StoreUnavailable, lock, locks
from django_tasklock.views import lock_view
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, taken
from tests.store_cases import redis_cache

pytestmark = [
    pytest.mark.urls(__name__),
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("on_redis"),
]


def held_now(number: int) -> str:
    return f"order {number}, held: {locks.is_locked(f'order:{number}')}"


on_order = lock_view("order:{number}", ttl=LONG)


@on_order
def function(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse(held_now(number))


@on_order
async def coroutine(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse(await sync_to_async(held_now)(number))


class Plain(View):
    def post(self, request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse(held_now(number))


class PlainAsync(View):
    async def post(self, request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse(await sync_to_async(held_now)(number))


def rest_function(request: Any, number: int) -> Response:
    return Response(held_now(number))


class Rest(ViewSet):  # type: ignore[misc]
    authentication_classes = permission_classes = ()

    def post(self, request: Any, number: int) -> Response:
        return Response(held_now(number))


def subclass(view: Any, **methods: Any) -> Any:
    return type("Own", (view,), methods)


def on(method: str, view: Any, *others: Any, **actions: str) -> Any:
    """The view of a class whose ``method`` Django's `method_decorator` has put under the lock."""
    locked = method_decorator([on_order, *others], name=method)(subclass(view))
    return locked.as_view(*[actions] if actions else [])


def own(method: str, view: Any) -> Any:
    """The view of a class that decorates the function ``method`` itself."""
    return subclass(view, **{method: on_order(getattr(view, method))}).as_view()


def above(view: Any) -> Any:
    """The view of a class whose ``dispatch`` something else decorates."""
    return method_decorator(csrf_exempt, name="dispatch")(subclass(view)).as_view()


POST = {"post": "post"}
KINDS: dict[str, Callable[..., Any]] = {
    "function": function,
    "coroutine": coroutine,
    "dispatch": on("dispatch", Plain),
    "async-dispatch": on("dispatch", PlainAsync),
    "own-dispatch": own("dispatch", PlainAsync),
    "method": on("post", Plain),
    "own-method": own("post", Plain),
    "async-method": on("post", PlainAsync),
    "as-view": on_order(Plain.as_view()),
    "async-as-view": on_order(PlainAsync.as_view()),
    "dispatch-over-another": on("dispatch", Plain, csrf_exempt),
    "async-dispatch-over-another": on("dispatch", PlainAsync, csrf_exempt),
    "decorated-as-view": on_order(above(Plain)),
    "decorated-async-as-view": on_order(csrf_exempt(above(PlainAsync))),
    "rest-method": subclass(Rest, post=on_order(Rest.post)).as_view(POST),
    "rest-as-view": on_order(Rest.as_view(POST)),
    "rest-above": on_order(api_view(["POST"])(rest_function)),
    "rest-below": api_view(["POST"])(on_order(rest_function)),
}


class Names(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(" ".join([info.name for info in await locks.alist()]))


of_user = lock_view("cart:{request.user.pk}", ttl=LONG)
NAMED: dict[str, Callable[..., Any]] = {
    "user": of_user(above(Names)),
    "callable": lock_view(lambda request: f"cart:{request.user.pk}", ttl=LONG)(Names.as_view()),
}


class Orders(ViewSet):  # type: ignore[misc]
    permission_classes = (IsAuthenticated,)

    @on_order
    def update(self, request: Any, number: int) -> Response:
        raise NotFound(held_now(number))


urlpatterns = [
    *(path(f"{kind}/<int:number>/", view) for kind, view in KINDS.items()),
    *(path(f"{kind}/", view) for kind, view in NAMED.items()),
    path("orders/<int:number>/", Orders.as_view({"put": "update"})),
    path("whole/<int:number>/", on("dispatch", Orders, put="update")),
]


def user_of(client: Client) -> Any:
    client.force_login(user := User.objects.create_user("ada"))
    return user


def done(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


def both(locked: Callable[[Any], Any], view: Callable[[HttpRequest], Any]) -> list[Any]:
    """The view as a function and as a coroutine function, both under the lock."""

    async def async_view(request: HttpRequest) -> Any:
        return await sync_to_async(view)(request)

    return [locked(view), async_to_sync(locked(async_view))]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_view_runs_under_the_lock_and_refuses(kind: str) -> None:
    # On a thread, and on an event loop
    for post in (Client().post, async_to_sync(AsyncClient().post)):
        response = post(f"/{kind}/7/")
        assert response.status_code == 200, response.content
        assert b"order 7, held: True" in response.content
        assert not locks.is_locked("order:7")
    with lock("order:7", ttl=LONG) as lease:
        response = Client().post(f"/{kind}/7/")
        assert response.status_code == 409
        # I expect the seconds of the lease that are left, rounded up
        assert lease.remaining <= int(response["Retry-After"]) <= LONG
        # and a line of text, but for DRF's own requests: its renderers do as they always do
        rest = kind in ("rest-method", "rest-below")
        expected = "application/json" if rest else "text/plain"
        assert response["Content-Type"].startswith(expected)
        asked_for_json = Client().post(f"/{kind}/7/", headers={"accept": "application/json"})
        assert asked_for_json.status_code == 409
        assert json.loads(asked_for_json.content).keys() == {"detail"}
        # I expect another order to be another lock
        assert Client().post(f"/{kind}/8/").status_code == 200
        assert lease.held


def test_name_may_come_from_the_user_or_a_callable() -> None:
    client = Client()
    user = user_of(client)
    for kind in NAMED:
        assert client.get(f"/{kind}/").content.decode() == f"cart:{user.pk}"


def test_view_of_rest_framework_keeps_its_permissions_and_errors() -> None:
    client = Client()
    with lock("order:7", ttl=LONG):
        # I expect the permission to be asked before the lock, but for a lock around `dispatch`
        assert client.put("/orders/7/").status_code == 403
        assert client.put("/whole/7/").status_code == 409
    user_of(client)
    answer = client.put("/orders/7/")
    assert (answer.status_code, answer.json()["detail"]) == (404, "order 7, held: True")
    assert not locks.is_locked("order:7")


def test_lost_lease_is_no_success() -> None:
    def view(request: HttpRequest) -> HttpResponse:
        assert locks.clear("x")
        return done(request)

    for locked in both(lock_view("x"), view):
        with pytest.raises(LeaseLost):
            locked(HttpRequest())


def test_refusal_is_as_the_options_say() -> None:
    def refusal(**options: Any) -> HttpResponse:
        response: HttpResponse = lock_view("x", **options)(done)(HttpRequest())
        return response

    taken("x", ttl=LONG)
    assert refusal(status=429).status_code == 429
    assert "Retry-After" not in refusal(retry_after=False)
    assert refusal(retry_after=3)["Retry-After"] == "3"
    # A key of other code that never expires
    locks.store.client.redis.set(locks.store.key("x"), "theirs")  # type: ignore[attr-defined]
    assert "Retry-After" not in refusal()


def test_outage_is_no_refusal(use_caches: UseCaches) -> None:
    called: list[HttpRequest] = []
    use_caches({"default": redis_cache("redis://127.0.0.1:1/0")}, {"default": {}})
    for locked in both(lock_view("x"), called.append):
        with pytest.raises(StoreUnavailable):
            locked(HttpRequest())
    for locked in both(lock_view("x", outage_status=503), called.append):
        assert locked(HttpRequest()).status_code == 503
    assert called == []


def test_view_that_is_done_is_not_failed_by_the_release(
    use_redis: UseRedis, own_redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a Redis that stops while the view runs
    use_redis(own_redis_server.url)

    def view(request: HttpRequest) -> HttpResponse:
        own_redis_server.stop()
        return HttpResponse("charged")

    for locked in both(lock_view("x", ttl=LONG, renew=False), view):
        # I expect the view's answer, and a warning in the log
        assert locked(HttpRequest()).content == b"charged"
        assert "a view could not release its lock x now: " in caplog.text
        caplog.clear()
        own_redis_server.restart()


def test_lock_stays_taken_after_the_view_as_it_ended() -> None:
    times: dict[str, Any] = {"cooldown": 600, "cooldown_after_error": 60}
    for charge in both(lock_view("x", **times), lambda request: 1 // 0):
        with pytest.raises(ZeroDivisionError):
            charge(HttpRequest())
        refused = charge(HttpRequest())
        assert 0 < int(refused["Retry-After"]) <= 60
        assert refused.content == b"This ran a moment ago. Try again later."
        locks.clear("x")
    assert lock_view("x", **times)(done)(HttpRequest()).content == b"done"
    assert 500 < int(lock_view("x")(done)(HttpRequest())["Retry-After"]) <= 600


@pytest.mark.parametrize(
    "options",
    [
        {"status": 200}, {"status": True}, {"outage_status": 42}, {"retry_after": -1},
        {"retry_after": "soon"}, {"hold_at_least": -1}, {"wait": -1},
    ],
)  # fmt: skip
def test_options_that_cannot_be_meant(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        lock_view("x", **options)


def test_names_that_cannot_be_meant() -> None:
    with pytest.raises(ValueError, match="no such parameter"):
        lock_view("order:{nummer}")(function)
    with pytest.raises(TypeError, match="method_decorator"):
        lock_view("order:{number}")(Plain)
    not_a_name: Any = done
    not_a_view: Any = HttpRequest()
    with pytest.raises(TypeError, match=r'@lock_view\("a name"\)'):
        lock_view(not_a_name)(not_a_view)
