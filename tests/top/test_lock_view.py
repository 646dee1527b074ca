"""``lock_view`` on every kind of view, answered by Django's own handler."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import time_machine
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from rest_framework.decorators import api_view
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from django_tasklock import LeaseLost, StoreUnavailable, lock, locks
from django_tasklock.views import lock_view
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, taken
from tests.store_cases import redis_cache
from tests.waiting import PATIENCE

pytestmark = [
    pytest.mark.urls(__name__),
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("on_redis"),
]

on_order = lock_view("order:{number}", ttl=LONG)


def names(request: Any) -> HttpResponse:
    """The names of all locks that are held."""
    return HttpResponse(" ".join(info.name for info in locks.list()))


def function(request: Any, number: int) -> HttpResponse:
    return names(request)


async def coroutine(request: Any, number: int) -> HttpResponse:
    return await sync_to_async(names)(request)


def rest_function(request: Any, number: int) -> Response:
    return Response(names(request).content)


class Plain(View):
    def post(self, request: HttpRequest, number: int) -> HttpResponse:
        return names(request)


class PlainAsync(View):
    async def post(self, request: HttpRequest, number: int) -> HttpResponse:
        return await coroutine(request, number)


class Rest(ViewSet):  # type: ignore[misc]
    authentication_classes = permission_classes = ()

    def post(self, request: Any, number: int) -> Response:
        return rest_function(request, number)


def on(method: str, view: Any, *decorators: Any) -> Any:
    """The view of a class whose ``method`` Django's `method_decorator` has decorated."""
    made: Any = method_decorator(decorators, name=method)(type("On", (view,), {}))
    return made.as_view()


def own(method: str, view: Any, *actions: Any) -> Any:
    """The view of a class that decorates the function ``method`` itself."""
    made: Any = type("Own", (view,), {method: on_order(getattr(view, method))})
    return made.as_view(*actions)


KINDS: dict[str, Callable[..., Any]] = {
    "function": on_order(function),
    "coroutine": on_order(coroutine),
    "dispatch": on("dispatch", Plain, on_order),
    "async-dispatch": on("dispatch", PlainAsync, on_order),
    "async-dispatch-over-another": on("dispatch", PlainAsync, on_order, csrf_exempt),
    "own-dispatch": own("dispatch", PlainAsync),
    "method": on("post", Plain, on_order),
    "async-method": on("post", PlainAsync, on_order),
    "own-method": own("post", Plain),
    "as-view": on_order(Plain.as_view()),
    "async-as-view": on_order(PlainAsync.as_view()),
    "decorated-as-view": on_order(on("dispatch", Plain, csrf_exempt)),
    "decorated-async-as-view": on_order(csrf_exempt(on("dispatch", PlainAsync, csrf_exempt))),
    "rest-method": own("post", Rest, {"post": "post"}),
    "rest-as-view": on_order(Rest.as_view({"post": "post"})),
    "rest-above": on_order(api_view(["POST"])(rest_function)),
    "rest-below": api_view(["POST"])(on_order(rest_function)),
}
urlpatterns = [path(f"{kind}/<int:number>/", view) for kind, view in KINDS.items()]


def done(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


def both(locked: Callable[[Any], Any], view: Callable[[HttpRequest], Any]) -> list[Any]:
    """The view as a function and as a coroutine function, both under the lock."""

    async def async_view(request: HttpRequest) -> Any:
        return await sync_to_async(view)(request)

    return [locked(view), async_to_sync(locked(async_view))]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_view_runs_under_the_lock_and_refuses(kind: str) -> None:
    # Given a view whose argument names the lock, on a thread, and on an event loop
    # I expect a request to be answered under the lock, which is free after it
    for post in (Client().post, async_to_sync(AsyncClient().post)):
        response = post(f"/{kind}/7/")
        assert response.status_code == 200, response.content
        assert b"order:7" in response.content
        assert not locks.is_locked("order:7")

    # And a second one to be refused meanwhile
    with lock("order:7", ttl=LONG) as lease:
        response = Client().post(f"/{kind}/7/")
        assert response.status_code == 409
        # I expect as many seconds as the holder has worked, at least one
        assert response["Retry-After"] == "1"
        # and a line of text, but for DRF's own requests: its renderers do as they always do
        rest = kind in ("rest-method", "rest-below")
        expected = "application/json" if rest else "text/plain"
        assert response["Content-Type"].startswith(expected)
        asked_for_json = Client().post(f"/{kind}/7/", headers={"accept": "application/json"})
        assert asked_for_json.status_code == 409
        assert asked_for_json.json().keys() == {"detail"}
        # I expect another order to be another lock
        assert Client().post(f"/{kind}/8/").status_code == 200
        assert lease.held


def test_the_name_may_come_from_the_user_or_a_callable() -> None:
    user = User.objects.create_user("ada")
    for name in ("cart:{request.user.pk}", lambda request: f"cart:{request.user.pk}"):
        for view in both(lock_view(name, ttl=LONG), names):
            request: Any = HttpRequest()
            request.user = SimpleLazyObject(User.objects.get)  # As the middleware's.
            assert view(request).content.decode() == f"cart:{user.pk}"


def test_a_client_is_told_to_wait_as_long_as_is_known_or_as_the_options_say() -> None:
    def told() -> int:
        return int(lock_view("x")(done)(HttpRequest())["Retry-After"])

    locks.hold("x", LONG, by="ada")
    assert LONG - PATIENCE < told() <= LONG
    locks.clear("x")
    with time_machine.travel(datetime.now(timezone.utc)) as clock:
        taken("x", ttl=LONG)
        # A payment of a second is not asked for after a minute
        assert told() == 1
        refusal = lock_view("x", status=429, retry_after=3)(done)(HttpRequest())
        assert (refusal.status_code, refusal["Retry-After"]) == (429, "3")
        assert "Retry-After" not in lock_view("x", retry_after=False)(done)(HttpRequest())
        # What has worked for a while may go on for as long
        clock.shift(timedelta(seconds=LONG / 3))
        assert LONG / 3 <= told() < LONG / 2
        # and for no longer than its lease
        clock.shift(timedelta(seconds=10 * LONG))
        assert told() <= LONG


def test_a_lost_lease_is_no_success_and_an_outage_no_refusal(use_caches: UseCaches) -> None:
    for locked in both(lock_view("x"), lambda request: locks.clear("x")):
        with pytest.raises(LeaseLost):
            locked(HttpRequest())
    called: list[HttpRequest] = []
    use_caches({"default": redis_cache("redis://127.0.0.1:1/0")}, {"default": {}})
    for locked in both(lock_view("x"), called.append):
        with pytest.raises(StoreUnavailable):
            locked(HttpRequest())
    for locked in both(lock_view("x", outage_status=503), called.append):
        assert locked(HttpRequest()).status_code == 503
    assert called == []


def test_a_view_that_is_done_is_not_failed_by_the_release(
    use_redis: UseRedis, own_redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    use_redis(own_redis_server.url)

    def view(request: HttpRequest) -> HttpResponse:
        own_redis_server.stop()
        return done(request)

    for locked in both(lock_view("x", ttl=LONG, renew=False), view):
        assert locked(HttpRequest()).content == b"done"
        assert "a view could not release its lock x now: " in caplog.text
        caplog.clear()
        own_redis_server.restart()


def test_the_lock_stays_taken_after_the_view_as_it_ended() -> None:
    cooling = lock_view("x", cooldown=600, cooldown_after_error=60)
    for charge in both(cooling, lambda request: 1 // 0):
        with pytest.raises(ZeroDivisionError):
            charge(HttpRequest())
        refused = cooling(done)(HttpRequest())
        assert 0 < int(refused["Retry-After"]) <= 60
        assert b"a moment ago" in refused.content
        locks.clear("x")
    answers = [cooling(done)(HttpRequest()) for _ in "ab"]
    assert answers[0].content == b"done"
    assert 500 < int(answers[1]["Retry-After"]) <= 600


def test_options_and_names_that_cannot_be_meant() -> None:
    wrong: list[dict[str, Any]] = [
        {"status": 200}, {"status": True}, {"outage_status": 42}, {"retry_after": -1},
        {"retry_after": "soon"}, {"hold_at_least": -1}, {"wait": -1},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises((TypeError, ValueError)):
            lock_view("x", **options)
    anything: Any = HttpRequest()
    with pytest.raises(ValueError, match="no such parameter"):
        lock_view("order:{nummer}")(function)
    with pytest.raises(TypeError, match="method_decorator"):
        on_order(Plain)
    # Without a name the view is taken for it, and Django calls what decorates.
    view: Any = function
    bare: Any = lock_view(view)
    with pytest.raises(TypeError, match=r'must decorate a view, not .*@lock_view\("a name"\)'):
        bare(anything, number=1)
