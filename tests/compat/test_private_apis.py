"""What `django_tasklock._compat` uses of other packages is still there in the installed versions.

Each test uses the real part. When one fails after an upgrade, read what has replaced that part and
change the one function of `_compat` that uses it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import celery
import pytest
import redis
from billiard import common as billiard_common
from billiard.pool import TimeoutHandler
from celery import Celery
from celery.app.task import Task
from celery.backends.redis import RedisBackend
from celery.concurrency.prefork import TaskPool
from celery.fixups import django as celery_fixup
from celery.worker import state, strategy
from celery.worker.request import Request as untyped_request
from django.contrib.admin import ModelAdmin
from django.contrib.admin.views.main import ChangeList
from django.core.cache import caches
from django.core.cache.backends.redis import RedisCache as DjangoRedisCache
from django.core.handlers.base import BaseHandler
from django.db import connections
from django_redis.cache import RedisCache
from kombu import Exchange, Queue
from kombu.common import Broadcast
from kombu.transport.native_delayed_delivery import calculate_routing_key

from django_tasklock._compat import celery as celery_compat
from django_tasklock._compat import celery_worker
from django_tasklock._compat import django as django_compat
from django_tasklock._compat import redis as redis_compat
from tests.servers import RedisServer

Request: Any = untyped_request


@pytest.mark.parametrize(
    ("where", "texts"),
    [
        # No checks are run within a check; and the class of requests may be named.
        (celery_fixup, [celery_compat.SKIP_CHECKS]),
        (strategy.default, ["symbol_by_name(task.Request)"]),
        # What a pool's child notes before it raises SystemExit; and how its pool is reached.
        (billiard_common, ["_should_have_exited[0] = True"]),
        (TaskPool.on_start, ["self._pool = "]),
        (TaskPool.Pool.maintain_pool, ["def maintain_pool(self"]),
        # The limit is told before the signal is sent.
        (TimeoutHandler.on_hard_timeout, ["job.handle_timeout(soft=False)", "self._trywaitkill("]),
        (BaseHandler.make_view_atomic, ['"_non_atomic_requests"', '["ATOMIC_REQUESTS"]']),
        (ModelAdmin.changeform_view, ["self._changeform_view("]),
        (ChangeList.get_results, ["self.queryset._clone()"]),
        (ChangeList.get_queryset, ["self.filter_specs", "self.has_filters"]),
        (ChangeList.get_queryset, ["self.has_active_filters"]),
        (ChangeList.get_queryset, ["self.clear_all_filters_qs"]),
    ],
)
def test_source(where: Any, texts: list[str]) -> None:
    # Given a function of another package that we call, or that calls us
    # I expect it to have these texts, in this order
    source, at = inspect.getsource(where), -1
    for text in texts:
        at = source.index(text, at + 1)


class TestRedisPy:
    @pytest.fixture
    def pool(self, redis_server: RedisServer) -> Iterator[Any]:
        # The time limit is redis-py's own only since its release 8.
        pool = redis.ConnectionPool.from_url(redis_server.url, protocol=2, socket_timeout=5)
        yield pool
        pool.disconnect()

    @pytest.fixture
    def connection(self, pool: Any) -> Iterator[Any]:
        """Not connected yet."""
        made = redis_compat.make_connection(pool, redis_compat.connection_options(pool))
        yield made
        made.disconnect()

    def test_subscription_on_a_connection_that_stays_closed(
        self, connection: Any, pool: Any
    ) -> None:
        connection.connect()
        redis_compat.never_reconnect(connection)
        subscribe = redis_compat.pack((b"SUBSCRIBE", b"news"))
        redis_compat.send(connection, subscribe)
        assert redis_compat.next_message(connection, 5) == [b"subscribe", b"news", 1]
        assert redis_compat.next_message(connection, 0) is None
        redis.Redis(connection_pool=pool).publish("news", "one")
        assert redis_compat.next_message(connection, 5) == [b"message", b"news", b"one"]
        connection.disconnect()
        with pytest.raises(redis.ConnectionError, match="was cut"):
            redis_compat.send(connection, subscribe)
        with pytest.raises(redis.ConnectionError):
            redis_compat.next_message(connection, 0)

    def test_a_child_closes_its_end_and_the_parents_goes_on(self, connection: Any) -> None:
        connection.connect()
        parents = os.dup(connection._sock.fileno())
        try:
            connection.pid = 0  # As in a forked child, whose number is another one.
            connection.disconnect()
            os.set_blocking(parents, True)
            os.write(parents, b"*1\r\n$4\r\nPING\r\n")
            assert os.read(parents, 100) == b"+PONG\r\n"
        finally:
            os.close(parents)


class TestCaches:
    @pytest.mark.parametrize("cache", [RedisCache, DjangoRedisCache])
    def test_what_is_written_under_a_key_is_read(
        self, cache: Any, redis_server: RedisServer
    ) -> None:
        one = cache(redis_server.url, {"KEY_PREFIX": secrets.token_hex(8)})
        raw = redis_compat.raw_cache(one)
        assert raw is not None
        with contextlib.closing(redis.Redis(connection_pool=raw.pool)) as client:
            client.set(raw.make_key("a"), raw.dumps("text"), px=10_000)
            assert one.get("a") == "text"
        raw.pool.disconnect()
        # And keys are made as the cache makes them
        one = cache("redis://localhost/0", {"KEY_PREFIX": "site", "VERSION": 3})
        raw = redis_compat.raw_cache(one)
        assert raw is not None
        assert raw.prepends
        assert raw.make_key("video:1") == raw.make_key("") + "video:1" == "site:3:video:1"
        own = cache("redis://localhost/0", {"KEY_FUNCTION": "tests.store_cases.make_key"})
        made = redis_compat.raw_cache(own)
        assert made is not None
        assert not made.prepends


def work() -> None:
    """What the tasks here do."""


class TestCelery:
    @pytest.fixture
    def app(self) -> Iterator[Any]:
        with Celery("compat", set_as_current=False, fixups=[]) as app:
            yield app

    def test_apps(self, app: Any) -> None:
        assert app in celery_compat.active_apps()
        assert celery_compat.is_of_project(app)
        app.main = "default"
        assert not celery_compat.is_of_project(app)

    @pytest.mark.parametrize("how", ["should_stop", "should_terminate"])
    @pytest.mark.parametrize("code", [True, 0])
    def test_a_worker_that_is_told_to_end(
        self, monkeypatch: pytest.MonkeyPatch, how: str, code: Any
    ) -> None:
        assert not celery_worker.is_shutting_down()
        monkeypatch.setattr(state, how, code)
        assert celery_worker.is_shutting_down()

    @pytest.mark.filterwarnings("ignore:Task name")  # Celery makes its own tasks again.
    def test_a_task_that_cannot_be_made_is_an_error_each_time(self, app: Any) -> None:
        class Broken(Task):
            def __init_subclass__(cls, **kwargs: Any) -> None:
                seen.append(celery_compat.makes_all_tasks())
                raise KeyError("broken")

        seen: list[bool] = []
        bad = app.task(name="compat.bad", shared=False, base=Broken)(work)
        for _ in range(2):  # A worker comes to the same error.
            with pytest.raises(KeyError, match="broken"):
                celery_compat.make_tasks(app)
        with pytest.raises(KeyError):
            bad.delay()
        assert seen == [True, True, False]

    def test_tasks_that_a_decorator_has_made(self, app: Any) -> None:
        app.task(name="compat.made", shared=False)(work)
        own = app.register_task(type("Own", (Task,), {"name": "compat.own"})())
        celery_compat.make_tasks(app)
        [made] = [task for task in celery_compat.made_tasks(app) if task.name == "compat.made"]
        assert celery_compat.is_of_function(made)
        assert not celery_compat.is_of_function(own)

    def test_broker_that_delays_messages(self, app: Any) -> None:
        app.conf.update(broker_url="amqp://nobody.invalid//", task_default_queue="plain")
        assert not celery_compat.delays_natively(app)
        app.conf.task_default_queue_type = "quorum"
        del app.amqp
        assert celery_compat.delays_natively(app)
        # Should it take less than a second one day, ours need not be rounded up.
        with pytest.raises(ValueError, match="positive"):
            calculate_routing_key(int(0.5), "key")

    def test_queue_of_a_message(self, app: Any) -> None:
        app.conf.task_queues = {"two": {"exchange": "of-two", "routing_key": "key.two"}}
        delayed = calculate_routing_key(2, "key.two")
        for exchange, key in (("of-two", "key.two"), ("celery_delayed_0", delayed)):
            info = {"exchange": exchange, "routing_key": key}
            assert celery_compat.queue_of(app, info) == "two"
        assert celery_compat.queue_of(app, {"exchange": "", "routing_key": "key.two"}) is None
        app.amqp.queues["two"].exchange.type = "topic"
        # Of a queue that is bound by a pattern, ``send_task`` is to take the message's own key.
        found = celery_compat.queue_of(app, {"exchange": "of-two", "routing_key": "video"})
        assert (found.exchange.type, found.routing_key) == ("topic", "video")

    def test_messages_of_a_broadcast(self, app: Any) -> None:
        exchange = Exchange("everyone", type="fanout")
        everyone = Broadcast("of-all"), Queue("of-one", exchange), Queue("plain")
        app.conf.task_queues = (*everyone, Queue("some", Exchange("by", "topic"), "some.#"))
        for name, key in (("of-all", ""), ("of-all", "a.key"), ("everyone", ""), ("not known", "")):
            assert celery_compat.is_broadcast(app, {"exchange": name, "routing_key": key})
        delayed = calculate_routing_key(2, "some.video")
        keys = {"": "plain", "plain": "plain", "by": "some.video", "celery_delayed_1": delayed}
        for name, key in {**keys, "not known": "key"}.items():
            assert not celery_compat.is_broadcast(app, {"exchange": name, "routing_key": key})
        assert not celery_compat.is_broadcast(app, None)

    def test_backends(self, app: Any, redis_server: RedisServer) -> None:
        none, kept = app.backend, RedisBackend(app=app, url=redis_server.url)
        for backend in (kept, none):
            assert celery_compat.keeps_results(backend) is (backend is kept)
            assert celery_compat.keeps_successes(backend) is (backend is kept)
        assert redis.ConnectionError in celery_compat.trouble_of_backend(kept)
        assert celery_compat.trouble_of_backend(none) == ()
        assert celery_compat.counts_parts_once(kept) != celery.__version__.startswith("5.6.")
        assert not celery_compat.counts_parts_once(none)


class TestDjango:
    def test_the_settings_are_those_that_a_test_run_changes(self, db: None) -> None:
        """The test database's name is the one that this very connection has."""
        its = connections["default"].settings_dict
        names = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT")
        assert django_compat.settings_of("default") == tuple(its[name] for name in names)

    def test_a_thread_has_a_cache_of_its_own_in_any_context(self) -> None:
        """asgiref 3.11 kept one for all threads to which the context is copied."""
        mine = caches["default"]
        with ThreadPoolExecutor(1) as other_thread:
            found = other_thread.submit(copy_context().run, lambda: caches["default"]).result()
        assert found is not mine


THREADS = """
import sys
PATCH
from django_tasklock._compat.native_threads import are_patched, new_lock, new_rlock, start_thread
lock, begun = new_lock(), []
lock.acquire()
start_thread(lock.release)
assert lock.acquire(timeout=10)
sys.setswitchinterval(30)
start_thread(lambda: begun.append(True))
guard = new_rlock()
with guard, guard:
    print(type(lock).__module__, type(guard).__module__, begun, are_patched())
"""


@pytest.mark.parametrize("name", ["", "gevent", "eventlet"])
def test_native_threads(name: str) -> None:
    """They have begun when the start returns: CPython 3.10 crashes if it ends before."""
    patch = {
        "gevent": "from gevent.monkey import patch_all; patch_all()",
        "eventlet": "import eventlet; eventlet.monkey_patch()",
    }.get(name, "")
    if name and importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    program = [sys.executable, "-W", "ignore", "-c", THREADS.replace("PATCH", patch)]
    said = subprocess.check_output(program, text=True, timeout=60)
    assert said == f"_thread _thread [True] {bool(patch)}\n"
