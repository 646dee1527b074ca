"""What `django_tasklock._compat` uses of other packages is still there in the installed versions.

Each test uses the real part. When one fails after an upgrade, read what has replaced that part and
change the one function of `_compat` that uses it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import celery
import pytest
import redis
from billiard.pool import TimeoutHandler
from celery import Celery
from celery.app.task import Context, Task
from celery.concurrency.prefork import TaskPool
from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.fixups import django as celery_fixup
from celery.worker import request as untyped_request
from celery.worker import strategy
from celery.worker.consumer import Consumer
from django.contrib.admin import ModelAdmin
from django.contrib.admin.views.main import ChangeList
from django.core.cache.backends.redis import RedisCache as DjangoRedisCache
from django.db import OperationalError, connections, transaction
from django.db.models import BigIntegerField, CharField, DecimalField, IntegerField, QuerySet
from django_redis.cache import RedisCache
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError
from kombu import Message
from kombu.transport.native_delayed_delivery import calculate_routing_key

from django_tasklock import InvalidLockConfig
from django_tasklock._compat import celery as celery_compat
from django_tasklock._compat import (
    celery_worker,
    django_database,
    native_threads,
    python,
    redis_caches,
    redis_halves,
    running_task,
)
from django_tasklock._compat import django as django_compat
from django_tasklock._compat import kazoo as kazoo_compat
from django_tasklock._compat import redis as redis_compat
from django_tasklock.admin.rows import Rows
from django_tasklock.celery import LockedTask
from tests.servers import RedisServer
from tests.waiting import until
from tests.zookeepers import ZooKeeper


@pytest.fixture
def pool(redis_server: RedisServer) -> Iterator[Any]:
    """A pool of redis-py's with a real server."""
    # The time limit is redis-py's own only since its release 8.
    pool = redis.ConnectionPool.from_url(redis_server.url, protocol=2, socket_timeout=5)
    yield pool
    pool.disconnect()


@pytest.fixture
def connection(pool: Any) -> Iterator[Any]:
    """A connection of redis-py's, not connected yet."""
    options = redis_compat.connection_options(pool)
    connection = redis_compat.make_connection(pool, options | {"decode_responses": False})
    yield connection
    connection.disconnect()


celery_request: Any = untyped_request
blocking_pool: Any = redis.BlockingConnectionPool  # Without types.


class TestRedisPy:
    def exchange(self, connection: Any, command: bytes, *, before: bytes = b"") -> Any:
        script = b"return {ARGV[1], redis.call(ARGV[2])}"
        args = (b"EVAL", script, b"0", b"7", command)
        return redis_compat.exchange(connection, args, b"7", before, tuple, True)

    def test_exchange_of_a_command_and_its_reply(self, connection: Any) -> None:
        assert isinstance(self.exchange(connection, b"DBSIZE"), int)

    def test_exchange_with_a_ping_before_it(self, connection: Any) -> None:
        assert isinstance(self.exchange(connection, b"DBSIZE", before=redis_compat.PING), int)

    @pytest.mark.parametrize("again", [True, False])
    def test_exchange_with_a_command_behind_it(self, connection: Any, again: bool) -> None:
        said: list[Any] = []
        for script in (b"return {ARGV[1], 'done'}", b"return redis.call('EVALSHA', 'x', 0)"):
            command, ping = (b"EVAL", script, b"0", b"7"), b"*1\r\n$4\r\nPING\r\n"
            if script.startswith(b"return redis"):
                command = (b"EVALSHA", b"0" * 40, b"0", b"7")
            said.append(
                redis_compat.exchange(
                    connection, command, b"7", b"", tuple, again, ping, said.append
                )
            )
        assert said == [b"PONG", b"done", b"PONG", redis_compat.NO_SCRIPT]
        assert isinstance(self.exchange(connection, b"DBSIZE"), int)

    def test_exchange_without_hiredis(
        self, connection: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redis_compat, "pack", None)
        assert isinstance(self.exchange(connection, b"DBSIZE"), int)

    def test_exchange_of_an_unknown_script(self, connection: Any) -> None:
        command = (b"EVALSHA", b"0" * 40, b"0", b"7")
        reply = redis_compat.exchange(connection, command, b"7", b"", tuple, False)
        assert reply is redis_compat.NO_SCRIPT

    def test_parts_that_exchange_uses(self, connection: Any) -> None:
        assert connection._sock is None
        assert connection.health_check_interval == 0
        assert callable(connection.check_health)
        assert callable(connection.retry.call_with_retry)
        assert connection.retry.get_retries() >= 0

    def test_hiredis_packs(self) -> None:
        pytest.importorskip("hiredis")
        assert redis_compat.pack is not None
        assert redis_compat.pack((b"GET", b"k")) == b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"

    def test_options_without_those_for_unasked_messages(self, pool: Any) -> None:
        options = redis_compat.connection_options(pool)
        assert options["port"] == pool.connection_kwargs["port"]
        assert not [name for name in options if name.startswith(("maint", "orig_"))]

    @pytest.mark.parametrize("limit", [None, 3.0])
    def test_waiting_limit(self, limit: float | None, redis_server: RedisServer) -> None:
        pool = redis.ConnectionPool.from_url(redis_server.url, socket_timeout=limit)
        assert redis_compat.has_waiting_limit(pool) is (limit is not None)

    def test_limits_of_pools(self) -> None:
        plain = redis.ConnectionPool(max_connections=3)
        blocking = blocking_pool(max_connections=4, timeout=5)
        assert redis_compat.most_connections(plain) == (3, None)
        assert redis_compat.most_connections(blocking) == (4, 5)

    def test_subscription(self, connection: Any, pool: Any) -> None:
        connection.connect()
        redis_compat.never_reconnect(connection)
        redis_compat.send_subscribe(connection, b"news")
        assert redis_compat.arrives(connection, 5)
        assert redis_compat.read_message(connection) == [b"subscribe", b"news", 1]
        assert not redis_compat.has_unread(connection)
        assert not redis_compat.arrives(connection, 0)
        redis.Redis(connection_pool=pool).publish("news", "one")
        assert redis_compat.arrives(connection, 5)
        assert redis_compat.read_message(connection) == [b"message", b"news", b"one"]
        redis_compat.send_unsubscribe(connection, b"news")
        assert redis_compat.read_message(connection) == [b"unsubscribe", b"news", 0]

    def test_closed_connection_is_not_connected_again(self, connection: Any) -> None:
        connection.connect()
        redis_compat.never_reconnect(connection)
        connection.disconnect()
        with pytest.raises(redis.ConnectionError, match="was cut"):
            redis_compat.send_subscribe(connection, b"news")

    def test_inherited_end_is_closed_and_nothing_is_sent(self, connection: Any) -> None:
        connection.connect()
        inherited = os.dup(connection._sock.fileno())
        try:
            redis_compat.close_inherited(connection)
            assert os.fstat(connection._sock.fileno()).st_rdev == os.stat(os.devnull).st_rdev
            os.set_blocking(inherited, True)
            os.write(inherited, b"*1\r\n$4\r\nPING\r\n")
            assert os.read(inherited, 100) == b"+PONG\r\n"  # The parent's end goes on.
        finally:
            os.close(inherited)


class TestHalvesOfAnExchange:
    ANSWER = (b"EVAL", b"return {ARGV[1], ARGV[2]}", b"0", b"7")

    @pytest.fixture(autouse=True)
    def _connected(self, connection: Any) -> None:
        pytest.importorskip("hiredis")
        connection.connect()

    def read(self, connection: Any, number: bytes = b"7") -> Any:
        return redis_halves.read_reply(connection, redis_halves.reader(), number, wait=True)

    def test_parts_that_it_uses(self, connection: Any) -> None:
        assert redis_halves.can_send(connection)
        connection.disconnect()
        assert not redis_halves.can_send(connection)

    def test_connections_of_other_kinds(self, redis_server: RedisServer) -> None:
        for options in ({"health_check_interval": 30}, {"socket_timeout": None}):
            pool = redis.ConnectionPool.from_url(redis_server.url, **options)
            made = redis_compat.make_connection(pool, pool.connection_kwargs)
            made.connect()
            assert not redis_halves.can_send(made)
            made.disconnect()

    @pytest.mark.parametrize("packer", ["hiredis", "redis-py"])
    def test_a_command_and_its_reply(
        self, connection: Any, packer: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if packer == "redis-py":
            monkeypatch.setattr(redis_compat, "pack", None)
        for _ in range(2):
            assert redis_halves.send(connection, (*self.ANSWER, b"done"))
            assert self.read(connection) == b"done"

    def test_an_error_leaves_the_connection_sound(self, connection: Any) -> None:
        assert redis_halves.send(connection, (b"EVALSHA", b"0" * 40, b"0", b"7"))
        assert self.read(connection) is redis_halves.FAILED
        assert redis_halves.send(connection, (*self.ANSWER, b"done"))
        assert self.read(connection) == b"done"

    @pytest.mark.parametrize(
        "returned", [b"{ARGV[1], ARGV[2]}", b"ARGV[1] .. ' ' .. ARGV[2]"], ids=["list", "text"]
    )
    def test_a_reply_to_another_command(self, connection: Any, returned: bytes) -> None:
        script = (b"EVAL", b"return " + returned, b"0")
        assert redis_halves.send(connection, (*script, b"7", b"done"))
        assert self.read(connection) == b"done"
        assert redis_halves.send(connection, (*script, b"88", b"done"))
        with pytest.raises(redis.ConnectionError, match="another command"):
            self.read(connection, b"8")

    def test_what_the_other_side_does(self, connection: Any) -> None:
        near, far = socket.socketpair()
        near.settimeout(0.2)
        connection._sock.close()
        connection._sock, reader = near, redis_halves.reader()

        def read(*, wait: bool) -> Any:
            return redis_halves.read_reply(connection, reader, b"7", wait=wait)

        with far:
            assert read(wait=False) is redis_halves.NOT_ALL
            far.send(b"*2\r\n$1\r\n7\r\n$4\r\ndo")
            assert read(wait=False) is redis_halves.NOT_ALL
            with pytest.raises(redis.TimeoutError):
                read(wait=True)
            far.send(b"ne\r\n")
            assert read(wait=False) == b"done"
            far.send(b"*2\r\n$1\r\n7\r\n$4\r\ndone\r\n+more\r\n")
            with pytest.raises(redis.ConnectionError, match="more than the reply"):
                read(wait=False)
            reader = redis_halves.reader()
            far.send(b"nothing of that kind\r\n")
            with pytest.raises(redis.ConnectionError, match="cannot be read"):
                read(wait=False)
            reader = redis_halves.reader()
        for wait in (False, True):
            with pytest.raises(redis.ConnectionError, match="closed by server"):
                read(wait=wait)
        assert not redis_halves.send(connection, self.ANSWER)
        near.close()
        connection._sock = None
        with pytest.raises(redis.ConnectionError, match="was closed"):
            read(wait=False)

    def test_a_command_that_does_not_fit_is_not_waited_for(self, connection: Any) -> None:
        near, far = socket.socketpair()
        near.settimeout(30)
        connection._sock.close()
        connection._sock = near
        with far:
            assert not redis_halves.send(connection, (*self.ANSWER, b"x" * 10**7))
        near.close()
        connection._sock = None


class TestCaches:
    def test_django_redis(self, redis_server: RedisServer) -> None:
        raw = redis_caches.raw_client(RedisCache(redis_server.url, {}))
        assert raw is not None
        assert raw.decompress is not None
        assert raw.loads(raw.decompress(raw.encode({"a": "b"}))) == {"a": "b"}
        assert raw.redis.ping()
        raw.redis.connection_pool.disconnect()

    def test_djangos_own(self, redis_server: RedisServer) -> None:
        raw = redis_caches.raw_client(DjangoRedisCache(redis_server.url, {}))
        assert raw is not None
        assert raw.decompress is None
        assert raw.loads(raw.encode({"a": "b"})) == {"a": "b"}
        assert raw.redis.ping()
        raw.redis.connection_pool.disconnect()

    def test_clients_that_pick_a_server_by_the_key(self, redis_server: RedisServer) -> None:
        sharded = {"OPTIONS": {"CLIENT_CLASS": "django_redis.client.ShardClient"}}
        assert redis_caches.picks_server_by_key(RedisCache(redis_server.url, sharded))
        assert not redis_caches.picks_server_by_key(RedisCache(redis_server.url, {}))

    @pytest.mark.parametrize("cache", [RedisCache, DjangoRedisCache])
    def test_caches_that_put_the_same_before_each_key(self, cache: Any) -> None:
        options = {"KEY_PREFIX": "site", "VERSION": 3}
        one = cache("redis://localhost/0", options)
        assert redis_caches.only_prepends(one)
        assert one.make_key("video:1") == one.make_key("") + "video:1" == "site:3:video:1"
        own_function = {"KEY_FUNCTION": "tests.store_cases.make_key"}
        assert not redis_caches.only_prepends(cache("redis://localhost/0", own_function))
        own_method = type("Cache", (cache,), {"make_key": lambda self, key, version=None: key})
        assert not redis_caches.only_prepends(own_method("redis://localhost/0", {}))

    def test_every_compressor_of_django_redis_is_known(self) -> None:
        """Old releases have some of them."""
        known = {*redis_caches.DECOMPRESSORS, redis_caches.NO_COMPRESSION}
        spec = importlib.util.find_spec("django_redis.compressors")
        assert spec is not None
        found = {
            f"django_redis.compressors.{module.name}"
            for module in pkgutil.iter_modules(spec.submodule_search_locations)
        } - {"django_redis.compressors.base"}
        assert redis_caches.NO_COMPRESSION in found
        assert found <= known


@pytest.fixture
def app() -> Iterator[Any]:
    """An app of Celery's that no project has."""
    app = Celery("compat", set_as_current=False, fixups=[])
    yield app
    app.close()


def work() -> None:
    """What the tasks here do."""


class TestCelery:
    def test_apps(self, app: Any) -> None:
        assert app in celery_compat.active_apps()

    def test_running_task(self, app: Any) -> None:
        def look() -> Any:
            return running_task.running_task()

        def call() -> Any:
            return looks()

        looks = app.task(look, name="looks", shared=False)
        calls = app.task(call, name="calls", shared=False)
        assert looks.apply(task_id="id-1").get() == ("looks", "id-1")
        assert calls.apply(task_id="id-2").get() == ("calls", "id-2")
        assert looks() is running_task.running_task() is None

    def test_no_task_runs_while_another_thread_imports_celery(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The module is known then, and has no functions yet."""
        monkeypatch.setitem(sys.modules, "celery._state", ModuleType("celery._state"))
        assert running_task.running_task() is None

    def test_apps_of_the_project(self, app: Any) -> None:
        unnamed = Celery("default", set_as_current=False, fixups=[])
        assert celery_compat.is_of_project(app)
        assert not celery_compat.is_of_project(unnamed)
        unnamed.close()

    def test_bodies_that_leave_by_themselves(self) -> None:
        """And not what the worker raises to end them, nor an error."""
        assert celery_compat.leaves_by_itself(SystemExit(3))
        assert celery_compat.leaves_by_itself(asyncio.CancelledError())
        workers = [WorkerShutdown(0), WorkerTerminate(1), ValueError()]
        assert not any(map(celery_compat.leaves_by_itself, workers))

    def test_greenlets_that_are_killed_do_not_leave_by_themselves(self) -> None:
        greenlet = pytest.importorskip("greenlet")
        assert not celery_compat.leaves_by_itself(greenlet.GreenletExit())

    def test_children_that_are_told_to_exit_do_not_leave_by_themselves(self) -> None:
        """In a child of billiard's pool the handler of the worker's signal raises SystemExit."""
        code = (
            "import os, signal\n"
            "from billiard.common import TERM_SIGNAL, reset_signals\n"
            "from django_tasklock._compat.celery import leaves_by_itself\n"
            "signal.signal(TERM_SIGNAL, lambda *_: None)\n"
            "reset_signals()\n"
            "try:\n"
            "    os.kill(os.getpid(), TERM_SIGNAL)\n"
            "    signal.pause()\n"
            "except SystemExit as error:\n"
            "    print(leaves_by_itself(error))\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout == "False\n", done.stderr

    def test_checks_are_skipped_by_the_environment(self) -> None:
        assert celery_compat.SKIP_CHECKS in inspect.getsource(celery_fixup)

    def test_tasks_that_can_be_made_are_made(self, app: Any) -> None:
        good = app.task(name="compat.good", shared=False)(work)
        app.task(name="compat.bad", shared=False, base=LockedTask, lock_tll=5)(work)
        for _ in range(2):  # A worker comes to the same error.
            with pytest.raises(InvalidLockConfig):
                celery_compat.make_tasks(app)
        assert good.__evaluated__()
        assert good in celery_compat.made_tasks(app)

    def test_workers_take_the_class_of_requests_from_the_hook(self, app: Any) -> None:
        class Hooked(celery_compat.WorkerTask):
            Strategy: Any = staticmethod(lambda task, app, consumer: task.Request)

            def worker_request(self, given: Any, consumer: Any) -> Any:
                return [given, consumer]

        one = app.task(name="compat.hooked", shared=False, lazy=False, base=Hooked)(work)
        consumer = Mock(app=Mock(tasks={"compat.hooked": one}), strategies={})
        untyped: Any = Consumer
        untyped.update_strategies(consumer)
        assert consumer.strategies == {"compat.hooked": [celery_request.Request, consumer]}
        assert "symbol_by_name(task.Request)" in inspect.getsource(strategy.default)

    @pytest.mark.parametrize(
        "method", ["push_request", "pop_request", "signature_from_request", "on_replace"]
    )
    def test_methods_of_tasks(self, method: str) -> None:
        assert callable(getattr(Task, method))

    def test_replacements(self) -> None:
        assert celery_compat.replacements(Context()) == 0
        assert celery_compat.replacements(Context({"replaced_task_nesting": 2})) == 2

    def test_broker_that_delays_messages(self, app: Any) -> None:
        app.conf.update(broker_url="amqp://nobody.invalid//", task_default_queue="plain")
        assert not celery_compat.delays_natively(app)
        app.conf.task_default_queue_type = "quorum"
        del app.amqp
        assert celery_compat.delays_natively(app)
        other = Celery("other", broker="memory://", set_as_current=False)
        other.conf.task_default_queue_type = "quorum"
        assert not celery_compat.delays_natively(other)

    def test_queue_of_a_message(self, app: Any) -> None:
        kinds = {"exchange_type": "topic", "queue_arguments": {"x-queue-type": "quorum"}}
        app.conf.task_queues = {
            name: {"exchange": f"of-{name}", "routing_key": f"key.{name}", **kinds}
            for name in ("one", "two")
        }
        info = {"exchange": "of-two", "routing_key": "key.two"}
        assert celery_compat.queue_of(app, info) == "two"
        key = calculate_routing_key(2, "key.two")
        delayed = {"exchange": "celery_delayed_0", "routing_key": key}
        assert celery_compat.queue_of(app, delayed) == "two"
        assert celery_compat.queue_of(app, {"exchange": "", "routing_key": "key.two"}) is None
        assert celery_compat.queue_of(app, None) is None
        # Of a queue that is bound by a pattern, ``send_task`` is to take the message's own key.
        for key in ("video.encode", calculate_routing_key(2, "video.encode")):
            found = celery_compat.queue_of(app, {"exchange": "of-two", "routing_key": key})
            assert (found.exchange.type, found.routing_key) == ("topic", "video.encode")

    @pytest.mark.parametrize("delay", [0.5, 1])
    def test_delays_that_celery_hands_to_the_broker(self, delay: float) -> None:
        """Should it take less than a second one day, ours need not be rounded up."""
        taken = pytest.raises(ValueError, match="positive") if delay < 1 else nullcontext()
        with taken:
            calculate_routing_key(int(delay), "key")

    def test_arguments_that_inspect_shows(self) -> None:
        message = Message(
            body='[["a"], {}, {}]', content_type="application/json", content_encoding="utf-8",
            headers={"id": "1", "task": "t", "argsrepr": "(<hidden>)", "kwargsrepr": "{}"},
        )  # fmt: skip
        task: Any = SimpleNamespace(name="t", ignore_result=False)
        request = celery_worker.WorkerRequest(message, app=Celery(set_as_current=False), task=task)
        assert request.info()["args"] == "(<hidden>)"

    def test_backends(self, app: Any, redis_server: RedisServer) -> None:
        stored: Any = Celery("compat", set_as_current=False, fixups=[], backend=redis_server.url)
        assert celery_compat.keeps_results(stored.backend)
        assert redis.ConnectionError in celery_compat.trouble_of_backend(stored.backend)
        counted = not celery.__version__.startswith("5.6.")
        assert celery_compat.counts_parts_once(stored.backend) is counted
        assert not celery_compat.counts_parts_once(app.backend)
        assert not celery_compat.keeps_results(app.backend)
        assert celery_compat.trouble_of_backend(app.backend) == ()
        stored.backend.client.connection_pool.disconnect()
        stored.close()


class TestWorker:
    def test_attributes_of_requests(self) -> None:
        request: Any = celery_request.Request
        assert {"_request_dict", "_args", "_kwargs", "_task"} <= {*request.__slots__}
        assert request._already_revoked is False

    def test_pool_of_billiard_looks_for_the_dead(self) -> None:
        assert callable(TaskPool.Pool.maintain_pool)
        assert "self._pool = " in inspect.getsource(TaskPool.on_start)

    def test_the_limit_is_told_before_the_signal_is_sent(self) -> None:
        source = inspect.getsource(TimeoutHandler.on_hard_timeout)
        assert source.index("job.handle_timeout(soft=False)") < source.index("self._trywaitkill(")

    def test_consumer_knows_its_pool_and_its_loop(self) -> None:
        assert {"pool", "hub"} <= {*inspect.signature(Consumer.__init__).parameters}
        hub = Mock(readers={})
        for pool, loop in ((TaskPool(1, app=Mock()), hub), (Mock(), None)):
            assert celery_worker.loop_of_children(Mock(pool=pool, hub=hub)) is loop


class TestDjango:
    def test_add_without_transaction(self) -> None:
        assert "self._changeform_view(" in inspect.getsource(ModelAdmin.changeform_view)

    @pytest.mark.parametrize("name", django_compat.QUERYSET_OVERRIDES)
    def test_queryset(self, name: str) -> None:
        assert callable(getattr(QuerySet, name))
        assert name in vars(Rows)
        assert f"self.queryset.{name}()" in inspect.getsource(ChangeList.get_results)

    def test_what_get_queryset_sets(self) -> None:
        source = inspect.getsource(ChangeList.get_queryset)
        for name in ("filter_specs", "has_filters", "has_active_filters", "clear_all_filters_qs"):
            assert f"self.{name}" in source

    @pytest.mark.django_db(transaction=True)
    def test_block_of_atomic(self) -> None:
        assert not django_database.is_in_atomic("default")
        with transaction.atomic():
            assert django_database.is_in_atomic("default")

    @pytest.mark.django_db
    def test_block_of_a_test_case_does_not_count(self) -> None:
        assert connections["default"].in_atomic_block
        assert not django_database.is_in_atomic("default")

    @pytest.mark.parametrize(
        ("field", "holds"),
        [
            (BigIntegerField(), True),
            (IntegerField(), False),
            (DecimalField(max_digits=16, decimal_places=0), True),
            (DecimalField(max_digits=16, decimal_places=2), False),
            (CharField(max_length=20), False),
        ],
        ids=["big", "integer", "decimal", "short decimal", "text"],
    )
    def test_range_of_fields(self, field: Any, holds: bool) -> None:
        field.set_attributes_from_name("fence")
        assert django_database.can_hold(10**16 - 1, field, connections["default"]) is holds


class TestDjangosDatabases:
    def test_the_settings_are_those_that_a_test_run_changes(self, db: None) -> None:
        """The test database's name is the one that this very connection has."""
        settings = django_database.settings_of("default")
        for key, value in zip(django_database.CONNECTED_BY, settings, strict=True):
            assert connections["default"].settings_dict[key] == value

    def test_a_new_connection_is_another_one_for_all_threads(self, db: None) -> None:
        wrapper = django_database.new_wrapper("default")
        assert type(wrapper) is type(connections["default"])
        assert wrapper is not connections["default"]
        assert wrapper.settings_dict == connections["default"].settings_dict
        mine, its = (
            connections["default"].settings_dict["OPTIONS"],
            wrapper.settings_dict["OPTIONS"],
        )
        assert mine is not its
        assert wrapper.connection is None
        wrapper.ensure_connection()
        with ThreadPoolExecutor(1) as other_thread:
            other_thread.submit(wrapper.close).result()
        assert wrapper.connection is None

    def test_a_connection_that_was_cut_is_closed(self, postgres_alias: str) -> None:
        connection = connections[postgres_alias]
        connection.ensure_connection()
        assert not django_database.close_if_cut(postgres_alias)
        with pytest.raises(OperationalError), connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        assert django_database.close_if_cut(postgres_alias)
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")

    def test_a_transaction_is_seen(self, transactional_db: None) -> None:
        connection = connections["default"]
        connection.ensure_connection()
        assert not django_database.in_transaction(connection)
        with transaction.atomic():
            assert django_database.in_transaction(connection)
        connection.set_autocommit(False)
        try:
            assert django_database.in_transaction(connection)
        finally:
            connection.set_autocommit(True)

    def test_a_connection_that_drops_databases_is_known(self, postgres_alias: str) -> None:
        assert not django_database.is_above_databases(connections[postgres_alias])
        with connections[postgres_alias]._nodb_cursor() as cursor:
            assert django_database.is_above_databases(cursor.db)


GREEN = """
import sys
from PACKAGE import PATCH
PATCH()
from django_tasklock._compat.native_threads import (
    are_patched, new_lock, new_rlock, start_thread
)
import _thread
lock = new_lock()
lock.acquire()
start_thread(lock.release)
assert lock.acquire(timeout=10)
guard = new_rlock()
with guard, guard:
    print(type(lock).__module__, type(guard).__module__, are_patched())
"""


class TestPython:
    @pytest.mark.parametrize(
        ("package", "patch"),
        [
            ("gevent.monkey", "patch_all"),
            ("eventlet", "monkey_patch"),
        ],
    )
    def test_native_threads_where_they_are_patched(self, package: str, patch: str) -> None:
        # Imported here, it would patch what the other tests use.
        if importlib.util.find_spec(package.partition(".")[0]) is None:
            pytest.skip(f"{package} is not installed")
        program = GREEN.replace("PACKAGE", package).replace("PATCH", patch)
        said = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert said.returncode == 0, said.stderr
        assert said.stdout.split() == ["_thread", "_thread", "True"]

    def test_native_threads(self) -> None:
        lock = native_threads.new_lock()
        lock.acquire()
        native_threads.start_thread(lock.release)
        assert lock.acquire(timeout=10)
        assert not native_threads.are_patched()

    def test_thread_has_begun_when_its_start_returns(self) -> None:
        """CPython 3.10 crashes if it ends before."""
        begun: list[bool] = []
        before = sys.getswitchinterval()
        sys.setswitchinterval(30)
        try:
            native_threads.start_thread(partial(begun.append, True))
            assert begun
        finally:
            sys.setswitchinterval(before)

    def test_caller(self) -> None:
        def inner() -> tuple[int, int]:
            return python.caller_id(0), python.caller_id(1)

        own, outer = inner()
        assert own != outer
        assert outer == python.caller_id(0)

    @pytest.mark.skipif(not python.has_pidfd(), reason="the system has no pidfds")
    def test_pidfd(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        fd = python.open_pidfd(child.pid)
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            assert not poll.poll(0)
            child.send_signal(signal.SIGKILL)
            until(lambda: poll.poll(0), "the pidfd's news of the death")
        finally:
            child.wait()
            os.close(fd)
            assert child.stdin is not None
            child.stdin.close()


class TestKazoo:
    """`CreateContainer` and `on_connected`; tests/stores/ uses them with a server."""

    def test_the_request_for_a_node_has_these_fields(self) -> None:
        request = kazoo_compat.CreateContainer("/lock/a", b"", [], kazoo_compat.CONTAINER)
        assert request.type == 19
        assert request.serialize()[-4:] == b"\0\0\0\4"

    def test_a_client_sends_requests_of_its_callers(self) -> None:
        client = KazooClient()
        client._session_callback("CLOSED")
        result = kazoo_compat.create_container_async(client, "/lock/a", [])
        with pytest.raises(ConnectionClosedError):
            result.get(timeout=0)

    def test_a_connection_returns_its_timeouts(self, zookeeper_server: ZooKeeper) -> None:
        """The first of them is two thirds of the session's, in milliseconds."""
        client = KazooClient(zookeeper_server.hosts, timeout=6.0)
        seen: list[tuple[float, float]] = []
        kazoo_compat.on_connected(client, time.monotonic, lambda *of: seen.append(of))
        before = time.monotonic()
        client.start()
        try:
            until(lambda: seen)
            ((sent, timeout),) = seen
            assert before <= sent <= time.monotonic()
            assert timeout == pytest.approx(6.0)
        finally:
            client.stop()
            client.close()
