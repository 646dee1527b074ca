"""What Celery, kombu and billiard do not document and we use, in every process that has tasks.

What only a worker's main process needs is in `celery_worker`, whose imports take longer. Read in
Celery 5.7.0, kombu 5.7.0 and billiard 4.3.2; the oldest releases that we support (see
``py310-lowest`` in pyproject.toml) have it too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from traceback import walk_stack
from types import SimpleNamespace
from typing import Any, NoReturn

from celery import Celery, _state
from celery.app.autoretry import add_autoretry_behaviour
from celery.backends.base import DisabledBackend, KeyValueStoreBackend
from celery.contrib.django.task import DjangoTask
from celery.utils.imports import symbol_by_name
from celery.utils.quorum_queues import detect_quorum_queues
from kombu import Exchange, Queue
from kombu.exceptions import ChannelError
from kombu.transport.native_delayed_delivery import MAX_NUMBER_OF_BITS_TO_USE

_any_state: Any = _state

# What native delayed delivery writes before the routing key of a message.
_DELAY = re.compile(rf"(?:[01]\.){{{MAX_NUMBER_OF_BITS_TO_USE}}}")

# An environment variable: where it is set, Celery's Django fixup runs no system checks when the
# tasks are imported. We import them inside a check, which would run itself again.
SKIP_CHECKS = "CELERY_SKIP_CHECKS"


class WorkerTask(DjangoTask):
    """Celery's task, with a hook for the class of the requests that a worker makes for it.

    A worker calls ``start_strategy``, which is not documented, when it starts, and when it has
    connected to the broker again. Only then is ``Task.Request`` read: a class, or the name of one.
    """

    abstract = True

    def worker_request(self, given: Any, consumer: Any) -> Any:
        """Return the class to use in place of ``given``, which is the task's own. ``consumer``:
        that of the worker, with its pool and its event loop."""
        return given

    def start_strategy(self, app: Any, consumer: Any, **kwargs: Any) -> Any:
        """As Celery's, with what `worker_request` returns for the task's ``Request``."""
        self.Request = self.worker_request(symbol_by_name(self.Request), consumer)
        return super().start_strategy(app, consumer, **kwargs)


def active_apps() -> list[Any]:
    """Every app that this process has made and not closed. Nothing public lists them."""
    return list(_any_state._get_active_apps())


def is_of_project(app: Any) -> bool:
    """Whether the project made ``app``: Celery makes one called "default" where there is none.

    An app that the project itself calls "default" is known by its fixups (``_fixups``), which a
    Django project's app has.
    """
    return bool(app._fixups) or app.main != "default"


def is_of_function(task: Any) -> bool:
    """Whether a decorator of Celery's made the class of ``task``, from a function."""
    return "__wrapped__" in vars(type(task))


def made_tasks(app: Any) -> list[Any]:
    """The tasks of ``app`` that are made. Its ``tasks`` would make the others, or raise."""
    return list(app._tasks.values())


def make_tasks(app: Any) -> None:
    """Make all tasks of ``app``, as a worker does. Raises the error of one that cannot be made.

    The app counts as finalized then all the same: a worker, whose checks we may be, would start
    without its tasks instead of failing. So ``finalized`` and ``_pending`` are restored.
    """
    with app._finalize_mutex:
        pending = app._pending.copy()
        try:
            app.finalize()
        except Exception:
            app.finalized, app._pending = False, pending
            raise


def makes_all_tasks() -> bool:
    """Whether Celery is just making all tasks of an app (``Celery.finalize``).

    It does so at the first use of any of them, and nothing public says that it does.
    """
    return any(frame.f_code is Celery.finalize.__code__ for frame, _ in walk_stack(None))


def delays_natively(app: Any) -> bool:
    """Whether the broker delays the app's messages, and not the worker that has received them.

    RabbitMQ does, where the app has a quorum queue. It takes whole seconds of at least 1: Celery
    cuts fractions off, and raises `ValueError` for what is left of 0.5. This asks as
    ``Celery.send_task`` does (``detect_quorum_queues``), and connects to nothing.
    """
    driver = app.producer_pool.connections.connection.transport.driver_type
    return bool(detect_quorum_queues(app, driver)[0])


def queue_of_calls(task: Any) -> str:
    """The name of the queue of a call of ``task`` that names none, where only the task's name
    routes it. ``Celery.send_task`` asks so. Raises what a router raises, and `KeyError`."""
    routed = task.app.amqp.router.route({"queue": getattr(task, "queue", None)}, task.name)
    return str(routed["queue"].name)


def count_messages(app: Any, queues: Iterable[str]) -> int:
    """How many messages are in ``queues``, and in those that the app knows. Raises what the broker
    raises.

    A passive declaration counts them, on the transports that can. A queue that does not exist has
    none, and on Redis an empty one does not exist.
    """
    count = 0
    with app.connection_for_read() as connection:
        for name in {*queues, *app.amqp.queues}:
            try:  # RabbitMQ closes a channel on which it did not find a queue.
                with connection.channel() as channel:
                    count += channel.queue_declare(name, passive=True).message_count
            except ChannelError as error:
                if str(error.reply_code) != "404":
                    raise
    return count


def queue_of(app: Any, delivery_info: Any) -> Any:
    """The app's queue from which a message came; None if no queue is known to be it.

    For a message that the broker delays, ``Celery.send_task`` takes the routing key of its queue,
    and that of the default queue where none is named, even if the options have another one. A
    message that was delayed has come through other exchanges, with a longer routing key.

    Returns the queue's name; or, where it is bound by a pattern, a queue that only has what
    ``send_task`` reads of it: the kind of its exchange, and the message's own routing key.
    """
    said = delivery_info or {}
    exchange = said.get("exchange")
    key, delays = _DELAY.subn("", said.get("routing_key") or "", count=1)
    kinds = {"topic"} if delays else set()
    for name, queue in [*app.amqp.queues.items()]:
        for bound in queue.bindings or (queue,):
            if not delays and bound.exchange.name == exchange:
                kinds.add(bound.exchange.type)
            if bound.routing_key == key and (delays or bound.exchange.name == exchange):
                return str(name)
    if kinds == {"topic"}:
        return Queue("", Exchange(exchange or "", type="topic"), routing_key=key)
    return None


def is_broadcast(app: Any, delivery_info: Any) -> bool:
    """Whether each worker got this message, with one task id: through a fanout exchange.

    Celery declares the queues of an app when a worker starts, so the kind of an exchange that no
    queue of the app has is not known. Then it is one if the message has no routing key, as
    messages for kombu's ``Broadcast`` have none.
    """
    said = delivery_info or {}
    if not (exchange := said.get("exchange")):
        return False
    queues = [bound for _, each in [*app.amqp.queues.items()] for bound in each.bindings or (each,)]
    kinds = {bound.exchange.type for bound in queues if bound.exchange.name == exchange}
    return "fanout" in kinds or not (kinds or said.get("routing_key"))


def raise_as_body(task: Any, error: Exception) -> NoReturn:
    """Raise what Celery would if the body of ``task`` raised this: `Retry` where ``autoretry_for``
    says so, and the retry is sent.

    Celery has that in a wrapper of ``Task.run`` alone (``add_autoretry_behaviour``), which is not
    called if the body is not. Here it wraps a body that does nothing else.
    """

    def run() -> NoReturn:
        raise error

    its = [name for name in dir(task) if name.startswith(("autoretry_", "dont_auto", "retry_"))]
    failing = SimpleNamespace(run=run, request=task.request, retry=task.retry)
    add_autoretry_behaviour(failing, **{name: getattr(task, name) for name in its})
    failing.run()
    raise error  # Where the options say that ``Task.retry`` raises nothing.


def trouble_of_backend(backend: Any) -> tuple[type[Exception], ...]:
    """What a result backend raises when its connection is cut (``connection_errors``).

    Only some backends have that; for the others it is empty. Without `KeyError`, which kombu counts
    among those of Redis: it may be anybody's mistake, at each try.
    """
    errors = getattr(backend, "connection_errors", ())
    return tuple(each for each in errors if not issubclass(each, LookupError))


def keeps_results(backend: Any) -> bool:
    """Whether results outlive the process that stored them (``persistent``).

    The backend of a project that has none (``DisabledBackend``) says that they do.
    """
    return bool(getattr(backend, "persistent", False)) and not isinstance(backend, DisabledBackend)


def keeps_successes(backend: Any) -> bool:
    """Whether no later state is stored over a success.

    Celery's backends for keys and values look for one in ``_store_result``, which is private.
    """
    celerys: Any = KeyValueStoreBackend
    return getattr(type(backend), "_store_result", None) is celerys._store_result


def counts_parts_once(backend: Any) -> bool:
    """Whether a part of a chord counts once, even if the result backend is told of it twice.

    Only that of Redis does so, from Celery 5.7 on (``_chord_part_return_script``). With the others
    the chord's body would start before all parts have ended.
    """
    return hasattr(type(backend), "_chord_part_return_script")
