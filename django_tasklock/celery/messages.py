"""Finds out which messages a broker does not have. That is possible on Redis only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .._compat.celery import redis_broker
from ..operators.reservations import lookers
from .loading import task_apps

__all__ = ["not_in_any_queue"]

MOST_KEYS = 100_000
"""in a broker's database with more keys, queues are not searched"""
MOST_MESSAGES = 10_000
"""in a database with more messages, they are not searched"""
MESSAGES_PER_READ = 500


def not_in_any_queue(task: str, task_ids: set[str]) -> set[str]:
    """Return the ids for which the broker has no message, neither in a queue nor with a worker.

    Returns an empty set where that cannot be known: the broker is not Redis, it does not answer,
    it has too many keys or messages, or the task does not belong to this project.
    """
    missing: set[str] = set()
    apps = [app for app in task_apps() if task in app.tasks]
    for number, app in enumerate(apps):
        absent = _absent(app, task_ids)
        missing = missing & absent if number else absent
    return missing


def _absent(app: Any, task_ids: set[str]) -> set[str]:
    if app.conf.broker_read_url != app.conf.broker_write_url:
        return set()  # The message may be on its way from the one broker to the other.
    absent = {task_id for task_id in task_ids if task_id.isascii() and task_id.isprintable()}
    try:
        with app.connection_for_read() as connection:
            broker = redis_broker(connection)
            if broker is None:
                return set()
            for raw in _messages(broker.client, broker.unacked_key):
                absent = {task_id for task_id in absent if task_id.encode() not in raw}
    except Exception:
        return set()  # The broker does not answer, or has too much to search.
    return absent


def _messages(client: Any, unacked: str) -> Iterator[bytes]:
    """Yield all messages of the database, in queues of any name, since each call may name a queue.

    Messages move from a queue to a worker, so queues are read first and workers' messages last.
    Each message has its task id in its properties, as text. Raises `OverflowError` if there are
    too many keys or messages.
    """
    if client.dbsize() > MOST_KEYS:
        raise OverflowError
    left = MOST_MESSAGES
    for queue in client.scan_iter(count=1000, _type="list"):
        left -= client.llen(queue)
        if left < 0:
            raise OverflowError
        # From the head, where messages are added: a message that moves meanwhile is read twice
        # rather than missed.
        for at in range(0, MOST_MESSAGES, MESSAGES_PER_READ):
            part = client.lrange(queue, at, at + MESSAGES_PER_READ - 1)
            yield from part
            if len(part) < MESSAGES_PER_READ:
                break
    if client.hlen(unacked) > left:
        raise OverflowError
    yield from client.hvals(unacked)


lookers.append(not_in_any_queue)
