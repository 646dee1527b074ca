"""``lock_view`` on every kind of view, answered by Django's own handler."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from rest_framework.decorators import api_view
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_tasklock import LeaseLost, StoreUnavailable, lock, locks
from django_tasklock.views import lock_view
from tests.conftest import UseCaches, UseRedis
from tests.servers import RedisServer
from tests.steps import LONG, Meanwhile, taken, waiting
from tests.store_cases import redis_cache
from tests.waiting import until

pytestmark = [pytest.mark.urls(__name__), pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def redis(use_redis: UseRedis) -> None:
    use_redis()


def held_now(number: int) -> str:
    return f"order {number}, held: {locks.is_locked(f'order:{number}')}"


on_order = lock_view("order:{number}", ttl=LONG)


@on_order
def function(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse(held_now(number))


@on_order
async def coroutine(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse(await sync_to_async(held_now)(number))


@method_decorator(on_order, name="dispatch")
class OnDispatch(View):
    def post(self, request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse(held_now(number))


@method_decorator(on_order, name="dispatch")
class OnAsyncDispatch(View):
    async def post(self, request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse(await sync_to_async(held_now)(number))


class OnOwnDispatch(View):
    @on_order
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return super().dispatch(request, *args, **kwargs)

    async def post(self, request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse(await sync_to_async(held_now)(number))


class OnMethod(View):
    @method_decorator(on_order)
    def post(self, request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse(held_now(number))


class OnOwnMethod(View):
    @on_order
    def post(self, request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse(held_now(number))


class OnAsyncMethod(View):
    @method_decorator(on_order)
    async def post(self, request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse(await sync_to_async(held_now)(number))


@method_decorator([on_order, csrf_exempt], name="dispatch")
class OnDispatchOverAnother(View):
    def post(self, request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse(held_now(number))


@method_decorator([on_order, csrf_exempt], name="dispatch")
class OnAsyncDispatchOverAnother(View):
    async def post(self, request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse(await sync_to_async(held_now)(number))


class Plain(View):
    def post(self, request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse(held_now(number))


class PlainAsync(View):
    async def post(self, request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse(await sync_to_async(held_now)(number))


@method_decorator(csrf_exempt, name="dispatch")
class Decorated(Plain):
    pass


@method_decorator(csrf_exempt, name="dispatch")
class DecoratedAsync(PlainAsync):
    pass


class RestOnMethod(APIView):  # type: ignore[misc]
    authentication_classes = ()
    permission_classes = ()

    @on_order
    def post(self, request: Request, number: int) -> Response:
        return Response(held_now(number))


@method_decorator(on_order, name="dispatch")
class RestOnDispatch(APIView):  # type: ignore[misc]
    authentication_classes = ()
    permission_classes = ()

    def post(self, request: Request, number: int) -> Response:
        return Response(held_now(number))


class RestPlain(ViewSet):  # type: ignore[misc]
    authentication_classes = ()
    permission_classes = ()

    def pay(self, request: Request, number: int) -> Response:
        return Response(held_now(number))


@on_order
@api_view(["POST"])  # type: ignore[untyped-decorator]
def rest_above(request: Request, number: int) -> Response:
    return Response(held_now(number))


@api_view(["POST"])  # type: ignore[untyped-decorator]
@on_order
def rest_below(request: Request, number: int) -> Response:
    return Response(held_now(number))


KINDS: dict[str, Callable[..., Any]] = {
    "function": function,
    "coroutine": coroutine,
    "dispatch": OnDispatch.as_view(),
    "async-dispatch": OnAsyncDispatch.as_view(),
    "own-dispatch": OnOwnDispatch.as_view(),
    "method": OnMethod.as_view(),
    "own-method": OnOwnMethod.as_view(),
    "async-method": OnAsyncMethod.as_view(),
    "as-view": on_order(Plain.as_view()),
    "async-as-view": on_order(PlainAsync.as_view()),
    "dispatch-over-another": OnDispatchOverAnother.as_view(),
    "async-dispatch-over-another": OnAsyncDispatchOverAnother.as_view(),
    "decorated-as-view": on_order(Decorated.as_view()),
    "decorated-async-as-view": on_order(csrf_exempt(DecoratedAsync.as_view())),
    "rest-method": RestOnMethod.as_view(),
    "rest-dispatch": RestOnDispatch.as_view(),
    "rest-as-view": on_order(RestPlain.as_view({"post": "pay"})),
    "rest-above": rest_above,
    "rest-below": rest_below,
}


@lock_view("cart:{request.user.pk}", ttl=LONG)
def cart(request: HttpRequest) -> HttpResponse:
    return HttpResponse(" ".join(info.name for info in locks.list()))


@lock_view("cart:{request.user.pk}", ttl=LONG)
async def async_cart(request: HttpRequest) -> HttpResponse:
    return HttpResponse(" ".join(info.name for info in await sync_to_async(locks.list)()))


@method_decorator(lock_view("cart:{request.user.pk}", ttl=LONG), name="dispatch")
@method_decorator(csrf_exempt, name="dispatch")
class CartOverAnother(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(" ".join(info.name for info in locks.list()))


def named(request: HttpRequest, **kwargs: Any) -> str:
    return "named"


@method_decorator([lock_view(named, ttl=LONG), csrf_exempt], name="dispatch")
class AsyncNamedByACallable(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(" ".join(info.name for info in await sync_to_async(locks.list)()))


@lock_view(lambda request, number: f"parity:{number % 2}", ttl=LONG)
def named_by_a_callable(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse(" ".join(info.name for info in locks.list()))


@lock_view("failing", ttl=LONG)
def failing(request: HttpRequest) -> HttpResponse:
    raise LookupError("no such order")


@lock_view("failing", ttl=LONG)
async def async_failing(request: HttpRequest) -> HttpResponse:
    raise LookupError("no such order")


@lock_view("cleared", ttl=LONG)
def cleared(request: HttpRequest) -> HttpResponse:
    assert locks.clear("cleared")
    return HttpResponse("done")


@lock_view("streamed", ttl=LONG)
def streamed(request: HttpRequest) -> StreamingHttpResponse:
    def parts() -> Iterator[str]:
        yield str(locks.is_locked("streamed"))

    return StreamingHttpResponse(parts())


@lock_view("waited", ttl=LONG, wait=LONG)
async def waited(request: HttpRequest) -> HttpResponse:
    return HttpResponse("it was its turn")


urlpatterns = [
    *(path(f"{kind}/<int:number>/", view, name=kind) for kind, view in KINDS.items()),
    path("cart/", cart),
    path("async-cart/", async_cart),
    path("cart-over-another/", CartOverAnother.as_view()),
    path("async-callable/", AsyncNamedByACallable.as_view()),
    path("callable/<int:number>/", named_by_a_callable),
    path("failing/", failing),
    path("async-failing/", async_failing),
    path("cleared/", cleared),
    path("streamed/", streamed),
    path("waited/", waited),
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_view_runs_under_the_lock(kind: str) -> None:
    response = Client().post(f"/{kind}/7/")
    assert response.status_code == 200, response.content
    assert b"order 7, held: True" in response.content
    assert not locks.is_locked("order:7")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_view_runs_on_an_event_loop(kind: str) -> None:
    response = async_to_sync(AsyncClient().post)(f"/{kind}/7/")
    assert response.status_code == 200, response.content
    assert b"order 7, held: True" in response.content
    assert not locks.is_locked("order:7")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_view_refuses(kind: str) -> None:
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


@pytest.mark.parametrize("url", ["/cart/", "/async-cart/", "/cart-over-another/"])
def test_name_may_come_from_the_user(url: str) -> None:
    user = User.objects.create_user("ada")
    client = Client()
    client.force_login(user)
    assert client.get(url).content.decode() == f"cart:{user.pk}"


def test_name_may_be_a_callable_of_the_arguments() -> None:
    assert Client().get("/callable/7/").content == b"parity:1"
    assert Client().get("/async-callable/").content == b"named"


@pytest.mark.parametrize("url", ["/failing/", "/async-failing/"])
def test_error_of_the_view_passes_through_and_the_lock_is_free(url: str) -> None:
    with pytest.raises(LookupError):
        Client().get(url)
    assert not locks.is_locked("failing")


def test_lost_lease_is_no_success() -> None:
    with pytest.raises(LeaseLost):
        Client().get("/cleared/")


def test_streaming_is_not_under_the_lock() -> None:
    response = Client().get("/streamed/")
    assert list(response) == [b"False"]


def done(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


def test_refusal_is_as_the_options_say() -> None:
    taken("x", ttl=LONG)

    def refusal(**options: Any) -> HttpResponse:
        return lock_view("x", **options)(done)(HttpRequest())

    assert refusal(status=429).status_code == 429
    assert "Retry-After" not in refusal(retry_after=False)
    assert refusal(retry_after=3)["Retry-After"] == "3"


def test_key_without_an_end_has_no_time_to_come_again() -> None:
    locks.store.client.redis.set(locks.store.key("x"), "of other code")  # type: ignore[attr-defined]
    refused = lock_view("x")(done)(HttpRequest())
    assert refused.status_code == 409
    assert "Retry-After" not in refused


def test_time_to_come_again_is_at_least_a_second() -> None:
    def ask() -> HttpResponse:
        taken("x", ttl=0.5)
        return lock_view("x")(done)(HttpRequest())

    # On a machine that is slow enough, the lease is over before the question.
    refused = until(lambda: (answer := ask()).status_code == 409 and answer, every=0.6)
    assert refused
    assert refused["Retry-After"] == "1"


def test_outage_is_no_refusal(use_caches: UseCaches) -> None:
    called = []

    def view(request: HttpRequest) -> HttpResponse:
        called.append(request)
        return HttpResponse()

    async def async_view(request: HttpRequest) -> HttpResponse:
        return view(request)

    use_caches({"default": redis_cache("redis://127.0.0.1:1/0")}, {"default": {}})
    with pytest.raises(StoreUnavailable):
        lock_view("x")(view)(HttpRequest())
    with pytest.raises(StoreUnavailable):
        async_to_sync(lock_view("x")(async_view))(HttpRequest())
    with_status = lock_view("x", outage_status=503)
    assert with_status(view)(HttpRequest()).status_code == 503
    assert async_to_sync(with_status(async_view))(HttpRequest()).status_code == 503
    assert called == []


def test_view_that_is_done_is_not_failed_by_the_release(
    use_redis: UseRedis, own_redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a Redis that stops while the view runs
    use_redis(own_redis_server.url)

    @lock_view("x", ttl=LONG, renew=False)
    def view(request: HttpRequest) -> HttpResponse:
        own_redis_server.stop()
        return HttpResponse("charged")

    # I expect the view's answer, and a warning in the log
    assert view(HttpRequest()).content == b"charged"
    assert "a view could not release its lock x now: " in caplog.text


def test_requests_that_wait_do_not_block_the_event_loop() -> None:
    # Given more requests that wait than an event loop's pool has threads
    lease = taken("waited")

    async def wait_and_go_on() -> list[int]:
        requests = [asyncio.create_task(AsyncClient().get("/waited/")) for _ in range(40)]
        await asyncio.to_thread(until, lambda: waiting("waited") == len(requests), "the queue")
        assert lease.release()
        return [(await request).status_code for request in requests]

    # I expect the loop to go on, and each to get its turn
    assert async_to_sync(wait_and_go_on)() == [200] * 40


def test_cancelled_request_leaves_no_lock() -> None:
    # Given a request that waits, and whose client goes away
    lease = taken("waited")

    async def cancel() -> BaseException:
        request = asyncio.create_task(AsyncClient().get("/waited/"))
        await asyncio.to_thread(until, lambda: waiting("waited") == 1, "the queue")
        request.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await request
        return caught.value

    # Kept, and with it all that the view had: garbage collection is not to do the work.
    error = async_to_sync(cancel)()
    # When the lock is handed to it nevertheless, I expect it to be released
    assert lease.release()
    until(lambda: not locks.is_locked("waited"))
    assert isinstance(error, asyncio.CancelledError)


def test_request_may_wait_for_its_turn() -> None:
    lease = taken("x")
    view = lock_view("x", wait=LONG)(done)
    request = Meanwhile(lambda: view(HttpRequest()))
    until(lambda: waiting("x") == 1)
    assert lease.release()
    assert request.result().content == b"done"


def test_a_click_that_comes_just_after_a_fast_request() -> None:
    view = lock_view("x", hold_at_least=600)(done)
    assert view(HttpRequest()).content == b"done"
    refused = view(HttpRequest())
    assert refused.status_code == 409
    assert refused.content == b"This ran a moment ago. Try again later."
    assert 500 < int(refused.headers["Retry-After"]) <= 600
    locks.clear("x")
    assert view(HttpRequest()).content == b"done"


def test_an_async_view_that_failed_may_be_tried_again_sooner() -> None:
    @lock_view("x", cooldown=600, cooldown_after_error=60)
    async def charge(request: HttpRequest) -> HttpResponse:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async_to_sync(charge)(HttpRequest())
    assert 0 < int(async_to_sync(charge)(HttpRequest()).headers["Retry-After"]) <= 60


@pytest.mark.parametrize(
    "options",
    [
        {"status": 200},
        {"hold_at_least": -1},
        {"cooldown": float("nan")},
        {"status": True},
        {"outage_status": 42},
        {"retry_after": -1},
        {"retry_after": "soon"},
        {"wait": -1},
        {"ttl": 0},
    ],
)
def test_options_that_cannot_be_meant(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        lock_view("x", **options)


def test_names_that_cannot_be_meant() -> None:
    with pytest.raises(ValueError, match="no such parameter"):
        lock_view("order:{nummer}")(function)
    with pytest.raises(TypeError, match="method_decorator"):
        lock_view("order:{number}")(Plain)
    request: Any = HttpRequest()
    not_a_name: Any = done
    with pytest.raises(TypeError, match=r'@lock_view\("a name"\)'):
        lock_view(not_a_name)(request)
    with pytest.raises(TypeError):
        lock_view(7)  # type: ignore[arg-type]
