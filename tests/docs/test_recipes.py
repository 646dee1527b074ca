"""The recipes do what their page says, with many callers at the same time.

What a block leaves to its reader is a function of the test, which stays in the middle of the work
until the other callers have come to where the page says that they come.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import celery
import pytest
from django.db import connection, models
from django.test import RequestFactory
from django.test.utils import isolate_apps

from django_tasklock import LockNotAcquired, locks
from tests.docs.run_pages import loaded
from tests.mailroom import Mailroom, mailroom
from tests.pages import DOCS, blocks
from tests.servers import RedisServer
from tests.steps import Meanwhile, all_of, holder, killed_in_child, waiting
from tests.waiting import PATIENCE, until

PAGE = DOCS / "recipes.md"
DATE = "2026-11-20"

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("on_redis")]


def recipe(heading: str, text: Callable[[str], str] = str, **readers: Any) -> Any:
    """What the block under a heading defines. ``readers``: what it leaves to its reader."""
    (block,) = blocks(PAGE, "python", heading)
    with patch.dict(sys.modules):
        if "models" in readers:
            package = str(block.label).removeprefix("# ").partition("/")[0]
            sys.modules[package] = ModuleType(package)
            sys.modules[f"{package}.models"] = readers.pop("models")
        return loaded(replace(block, text=text(block.text)), readers)


@pytest.fixture
def tables() -> Iterator[Any]:
    """The models of the reader's."""

    def model(name: str, **columns: Any) -> Any:
        meta = type("Meta", (), {"app_label": "app"})
        return type(name, (models.Model,), {"__module__": __name__, "Meta": meta, **columns})

    number = models.IntegerField
    with isolate_apps("tests.app"), connection.schema_editor() as editor:
        day = model("DailyReport", date=models.DateField(), videos_ready=number(), income=number())
        made = SimpleNamespace(DailyReport=day, Product=model("Product", stock=number()))
        editor.create_model(made.DailyReport)
        editor.create_model(made.Product)
    yield made
    with connection.schema_editor() as editor:
        editor.delete_model(made.DailyReport)
        editor.delete_model(made.Product)


class Crowd:
    """How many are in a place at the same time, and all that came."""

    def __init__(self, returns: Any = None) -> None:
        self._one, self._returns = threading.Lock(), returns
        self.here = self.most = 0
        self.came: list[Any] = []
        self.may_go = threading.Event()

    def pass_through(self, *who: Any) -> Any:
        with self._one:
            self.here += 1
            self.most = max(self.most, self.here)
            self.came.append(who)
        assert self.may_go.wait(PATIENCE)
        with self._one:
            self.here -= 1
        return self._returns


# ------------------------------------------------------------------------------ views, functions


def test_of_two_hosts_one_sends_and_a_later_start_finds_the_row(tables: Any) -> None:
    # Given two hosts on which cron starts the job at the same time
    mails = Crowd(returns=(3, 9))
    daily = recipe("Once a day on two hosts", models=tables, send=mails.pass_through)
    hosts = [Meanwhile(lambda: daily.send_daily_report(DATE)) for _ in range(2)]

    # I expect one of them to be refused while the other sends
    until(lambda: [host.is_alive() for host in hosts].count(False) == 1, "the refusal")
    mails.may_go.set()
    assert [host.result() for host in hosts].count(None) == 1

    # And a host whose clock is late to find the row
    assert daily.send_daily_report(DATE) is None
    assert mails.came == [(DATE,)]
    assert tables.DailyReport.objects.count() == 1


def test_without_a_row_a_cooldown_keeps_the_date_taken_after_a_success_only() -> None:
    def with_cooldown(text: str) -> str:
        decorator, function = re.findall(r"(?m)^(?:@|def ).*$", text)
        decorator = decorator.replace('"skip"', '"skip", cooldown=36 * 3600')
        return f"from django_tasklock import lock\n{decorator}\n{function}\n    return send(date)\n"

    sends = Mock(side_effect=[ConnectionError, (3, 9)])
    daily = recipe("Once a day on two hosts", with_cooldown, send=sends)
    with pytest.raises(ConnectionError):
        daily.send_daily_report(DATE)
    assert daily.send_daily_report(DATE) == (3, 9)
    assert daily.send_daily_report(DATE) is None
    info = holder(f"report:{DATE}")
    assert info.cooling
    assert 35 * 3600 < (info.ttl or 0) <= 36 * 3600


def test_of_five_clicks_one_charges_and_a_later_one_finds_the_order_paid() -> None:
    charges, answers = Crowd(), list[Any]()
    shop = recipe(
        "A payment clicked five times", charge=charges.pass_through,
        is_paid=lambda order_id: charges.came and not charges.here,
    )  # fmt: skip

    def click() -> Any:
        answers.append(shop.pay(RequestFactory().post("/"), order_id=7))
        return answers[-1].status_code

    clicks = [Meanwhile(click) for _ in range(5)]
    until(lambda: len(answers) == 4, "the refusals")
    assert all(int(answer["Retry-After"]) >= 1 for answer in answers)
    charges.may_go.set()
    assert sorted(each.result() for each in clicks) == [200, 409, 409, 409, 409]
    assert click() == 200
    assert answers[-1].content == b"Paid before."
    assert charges.came == [(7,)]


def test_one_process_leads_and_another_one_when_it_is_killed() -> None:
    """Commands, on two machines and in an outage: ``tests/top/test_leader.py``."""
    work = Crowd()
    killed = recipe("One leader", import_next_item=lambda: os.kill(os.getpid(), signal.SIGKILL))
    killed_in_child(killed.main)
    began = time.monotonic()
    feeds = recipe("One leader", import_next_item=work.pass_through, is_finished=lambda: True)
    leaders = [Meanwhile(feeds.main) for _ in range(3)]
    until(lambda: work.came, "the next leader")
    assert time.monotonic() - began < 15, "the lease of the dead was waited for"
    until(lambda: waiting("importer") == 2, "the others")
    work.may_go.set()
    for leader in leaders:
        leader.result()
    assert (work.most, len(work.came)) == (1, 3)


def test_of_many_who_miss_a_value_one_computes_it() -> None:
    counted = Crowd(returns=7)
    shop = recipe("A cache stampede", count_sales=counted.pass_through)
    visitors = [Meanwhile(shop.sales_today) for _ in range(30)]
    until(lambda: waiting("cached:default:sales-today") == 29, "the others")
    counted.may_go.set()
    assert [visitor.result() for visitor in visitors] == [7] * 30
    assert len(counted.came) == 1


def test_five_calls_begin_and_the_sixth_waits_for_the_time() -> None:
    calls = Crowd()
    calls.may_go.set()
    shop = recipe("A rate limit", fetch=calls.pass_through)
    all_of(*[partial(shop.fetch_prices, shop_id) for shop_id in range(5)])
    # I expect the permits to stay taken though their calls are over
    assert [(info.cooling, (info.ttl or 0) > 30) for info in locks.list()] == [(True, True)] * 5
    sixth = Meanwhile(lambda: shop.fetch_prices(5))
    until(lambda: len(locks.waiters("partner-api")) == 1, "the sixth")
    assert len(calls.came) == 5
    assert locks.clear("partner-api#3")
    sixth.result()
    assert len(calls.came) == 6


def test_who_waits_too_long_for_the_limit_is_told() -> None:
    partner = recipe("A rate limit", lambda text: text.replace("wait=120", "wait=0.1"), fetch=str)
    for shop_id in range(5):
        partner.fetch_prices(shop_id)
    with pytest.raises(LockNotAcquired, match="cooling"):
        partner.fetch_prices(5)


def test_of_a_hundred_buyers_ten_get_one(tables: Any) -> None:
    product = tables.Product.objects.create(stock=10)
    shop = recipe("A stock of ten", models=tables)
    together = threading.Barrier(100)

    def buy() -> Any:
        together.wait(PATIENCE)
        return shop.buy(product.pk)

    assert sorted(all_of(*[buy] * 100)) == [False] * 90 + [True] * 10
    product.refresh_from_db()
    assert product.stock == 0


# ------------------------------------------------------------------------------ tasks


@pytest.fixture
def room(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mailroom]:
    """A queue, whose app alone gets the tasks of the page."""
    with mailroom(redis_server.url) as room:
        monkeypatch.setattr(celery, "shared_task", partial(room.app.task, shared=False))
        yield room


def test_after_a_429_all_messages_wait_and_none_is_lost(room: Mailroom) -> None:
    # Given four calls, the first of which the partner answers with a 429
    class TooManyRequests(Exception):
        retry_after = 60.0

    came: list[int] = []

    def fetch(shop_id: int) -> None:
        came.append(shop_id)
        if len(came) == 1:
            raise TooManyRequests

    heading = "A partner that says when to come again"
    task = recipe(heading, fetch=fetch, TooManyRequests=TooManyRequests).fetch_prices
    for shop_id in range(4):
        task.delay(shop_id)
    assert room.deliver(room.take())[0] == "RETRY"
    assert holder("partner-api").held_by == "429"

    # I expect its retry and the other messages to wait, and to run when that time is over
    assert [room.deliver(room.take())[0] for _ in range(4)] == ["IGNORED"] * 4
    locks.clear("partner-api")
    assert room.work_off() == [("SUCCESS", None)] * 4
    assert sorted(came) == [0, 0, 1, 2, 3]


def test_of_five_who_ask_for_one_report_one_computes_it(room: Mailroom) -> None:
    computing = Crowd(returns=42)
    task = recipe("Five ask for one report", build_report=computing.pass_through).full_report
    for _ in range(5):
        task.delay(DATE)
    first = Meanwhile(partial(room.deliver, room.take()))
    until(lambda: computing.here, "the run")
    assert [room.deliver(room.take())[0] for _ in range(4)] == ["IGNORED"] * 4
    computing.may_go.set()
    assert first.result() == ("SUCCESS", 42)
    assert room.work_off() == [("SUCCESS", 42)] * 4
    assert computing.came == [(DATE,)]


def test_of_the_changes_of_a_page_the_newest_is_rendered(room: Mailroom) -> None:
    # Given a rendering that would not end by itself
    began, rendered = threading.Event(), list[int]()

    def write(page: int, version: int) -> None:
        began.set()
        while version == 1:
            time.sleep(0.01)
        rendered.append(version)

    task = recipe("The newest call counts", write=write).render_preview
    task.delay(7, 1)
    run = Meanwhile(partial(room.deliver, room.take()))
    until(began.is_set, "the run")

    # I expect later calls to end it, and the newest of them alone to render
    waits, newest = task.delay(7, 2), task.delay(7, 3)
    assert room.deliver(room.take(waits.id))[1]["reason"] == "replaced"
    assert run.result()[1]["reason"] == "replaced"
    assert room.deliver(room.take(newest.id)) == ("SUCCESS", None)
    assert rendered == [3]


@pytest.mark.parametrize(
    ("heading", "name", "key", "calls", "at_once"),
    [
        ("Two at once per tenant", "export", "large", 4, 2),
        ("A queue for each key", "book", 7, 10, 1),
    ],
)
def test_so_many_tasks_of_one_key_run_at_once_and_those_of_others_meanwhile(
    room: Mailroom, heading: str, name: str, key: Any, calls: int, at_once: int
) -> None:
    # Given many calls with one key, and a worker for each
    busy = Crowd()

    def write(of: Any, number: int) -> None:
        if of == key:
            busy.pass_through(number)

    task = vars(recipe(heading, write=write))[name]
    for number in range(calls):
        task.delay(key, number)
    workers = [Meanwhile(partial(room.deliver, room.take())) for _ in range(calls)]

    # I expect so many to run, the others to come back, and a call of another key to run meanwhile
    come_back = calls - at_once
    until(lambda: busy.here == at_once and len(room.ids()) == come_back, "those who come back")
    other = task.delay(8, 0)
    assert room.deliver(room.take(other.id)) == ("SUCCESS", None)

    # And all of them to have run in the end
    busy.may_go.set()
    states = sorted(worker.result()[0] for worker in workers)
    assert states == ["IGNORED"] * come_back + ["SUCCESS"] * at_once
    assert room.work_off() == [("SUCCESS", None)] * come_back
    assert busy.most == at_once
    assert sorted(busy.came) == [(number,) for number in range(calls)]
