"""``lock_view`` under ATOMIC_REQUESTS, whose transaction is around all decorators of a view."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.utils.functional import classproperty
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from rest_framework.viewsets import ViewSet

from django_tasklock import LeaseLost, locks
from django_tasklock.views import lock_view
from tests.app.models import Job
from tests.pages import found
from tests.steps import LONG, Meanwhile, all_of

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("on_redis"),
]

early = lock_view("order:{number}", ttl=LONG)
late = lock_view("order:{number}", ttl=LONG, until_commit=True)


def post(view: Callable[..., HttpResponse], number: int = 7) -> HttpResponse:
    """A request for an order, answered by Django's own handler."""
    with override_settings(ROOT_URLCONF=(path("orders/<int:number>/", view),)):
        return Client().post(f"/orders/{number}/")  # type: ignore[return-value]


@pytest.fixture
def atomic(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """``atomic(alias)``: the database has ATOMIC_REQUESTS."""
    return lambda alias: monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", True)


@pytest.fixture
def _atomic_default(atomic: Callable[[str], None]) -> None:
    atomic("default")


def created(request: HttpRequest, number: int) -> HttpResponse:
    Job.objects.create()
    return HttpResponse("created")


def test_of_ten_orders_that_are_clicked_again_and_again_each_is_paid_once(
    postgres_alias: str, atomic: Callable[[str], None]
) -> None:
    # Given a view that pays what is not paid yet, in the transaction of its request
    atomic(postgres_alias)
    with connections[postgres_alias].cursor() as cursor:
        cursor.execute("CREATE TABLE payment (number INTEGER)")

    def pay(request: HttpRequest, number: int) -> HttpResponse:
        with connections[postgres_alias].cursor() as cursor:
            cursor.execute(f"SELECT 1 FROM payment WHERE number = {number}")
            if cursor.fetchone() is None:
                cursor.execute(f"INSERT INTO payment VALUES ({number})")
        return HttpResponse("paid")

    locked = lock_view("pay:{number}", ttl=LONG, wait=LONG, until_commit=postgres_alias)(pay)

    def click() -> None:
        for number in range(10):
            url = f"/orders/{number}/"
            assert Client().post(url).content == b"paid"

    with connections[postgres_alias].cursor() as cursor:
        try:
            # When several customers click on all of them
            with override_settings(ROOT_URLCONF=(path("orders/<int:number>/", locked),)):
                all_of(*[click] * 4)
            # I expect each order to be paid once
            cursor.execute("SELECT number FROM payment")
            assert sorted(number for (number,) in cursor.fetchall()) == list(range(10))
        finally:
            cursor.execute("DROP TABLE payment")


@pytest.mark.usefixtures("_atomic_default")
def test_a_second_request_is_refused_until_the_first_one_is_committed() -> None:
    is_done, goes_on = threading.Event(), threading.Event()

    def slowly(request: HttpRequest, number: int) -> HttpResponse:
        response = late(created)(request, number=number)
        is_done.set()
        assert goes_on.wait(LONG)
        return response

    first = Meanwhile(lambda: post(slowly))
    assert is_done.wait(LONG)
    # One that writes nothing: SQLite has one writer at a time.
    assert post(transaction.non_atomic_requests(early(created))).status_code == 409
    goes_on.set()
    assert first.result().status_code == 200
    assert not locks.is_locked("order:7")


@pytest.mark.usefixtures("_atomic_default")
def test_a_view_that_lost_its_lock_is_rolled_back() -> None:
    def lose(request: HttpRequest, number: int) -> HttpResponse:
        locks.clear("order:7")
        return created(request, number)

    with pytest.raises(LeaseLost):
        post(late(lose))
    assert not Job.objects.exists()


class Plain(View):
    def post(self, request: HttpRequest, number: int) -> HttpResponse:
        return created(request, number)


class Rest(ViewSet):  # type: ignore[misc]
    authentication_classes = permission_classes = ()

    def post(self, request: Any, number: int) -> HttpResponse:
        return created(request, number)


class PlainAsync(View):
    async def post(self, request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse("done")


def on(method: str, decorator: Any, view: Any = Plain) -> Any:
    made: Any = type("On", (view,), {})
    if method == "dispatch":
        return method_decorator(decorator, name=method)(made).as_view()
    setattr(made, method, decorator(getattr(view, method)))
    return made.as_view(*[{"post": "post"}] * (view is Rest))


def test_an_async_view_has_no_transaction() -> None:
    with pytest.raises(TypeError, match="until_commit is for sync code"):
        late(PlainAsync.as_view())
    # Of a class it is seen at the call
    with pytest.raises(TypeError, match="until_commit is for sync code"):
        post(on("dispatch", late, PlainAsync))


def kinds(decorator: Any) -> list[Any]:
    """A view of each kind, under the lock."""
    return [
        decorator(created),
        csrf_exempt(decorator(created)),
        decorator(Plain.as_view()),
        on("dispatch", decorator),
        on("post", decorator),
        on("post", decorator, Rest),
    ]


def found_in(*views: Any, urlconf: Any = None) -> list[str]:
    inner = [path(f"{number}/", view) for number, view in enumerate(views)]
    with override_settings(ROOT_URLCONF=urlconf or (path("in/", include(inner)),)):
        return [message.msg for message in found() if message.id == "django_tasklock.W011"]


@pytest.mark.usefixtures("_atomic_default")
def test_a_check_finds_the_views_whose_lock_ends_before_the_commit(
    sqlite_alias: str, atomic: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for view in kinds(early):
        (said,) = found_in(view, view)
        assert "releases its lock before its commit" in said
        assert view.__module__ in said or "On" in said
    assert found_in(lock_view("x", until_commit=sqlite_alias)(created)) != []
    broken: Any = type("Broken", (Plain,), {"anything": classproperty(lambda cls: 1 / 0)})
    assert len(found_in(broken.as_view(), early(created))) == 1

    # It is quiet about those that are right
    atomic(sqlite_alias)
    exempt = transaction.non_atomic_requests(early(created))
    assert len(found_in(exempt)) == 1, "the transaction of the other database is around it"
    exempt = transaction.non_atomic_requests(sqlite_alias)(exempt)
    right = lock_view("x", until_commit=sqlite_alias)(created)
    assert found_in(*kinds(late), exempt, right, created, Plain.as_view()) == []
    assert found_in(urlconf="tests.no_such_urlconf") == []

    # and where no transaction is around any view
    monkeypatch.undo()
    assert found_in(*kinds(early)) == []
