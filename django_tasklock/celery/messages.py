"""Which messages a broker does not have, where that can be known: on Redis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..queued import lookers
from .loading import task_apps

__all__ = ["not_in_any_queue"]

MOST_KEYS = 100_000
"""keys of the broker's database that are looked through for queues"""
MOST_MESSAGES = 10_000
"""messages that are looked at; with more, nothing is known"""
CHUNK = 500


def not_in_any_queue(task: str, task_ids: set[str]) -> set[str]:
    """Those of the ids for which the broker has no message, neither waiting nor with a worker.

    None of them where that cannot be known: the broker is another one than Redis, or does not
    answer, or there is too much to look through, or the task is not of this project.
    """
    missing: set[str] = set()
    apps = [app for app in task_apps() if task in app.tasks]
    for place, app in enumerate(apps):
        absent = _absent(app, task_ids)
        missing = missing & absent if place else absent
    return missing


def _absent(app: Any, task_ids: set[str]) -> set[str]:
    if app.conf.broker_read_url != app.conf.broker_write_url:
        return set()  # What one broker has not, may be on its way from the other.
    absent = {task_id for task_id in task_ids if task_id.isascii() and task_id.isprintable()}
    try:
        with app.connection_for_read() as connection:
            if connection.transport.driver_type != "redis":
                return set()
            connection.ensure_connection(max_retries=1)
            channel = connection.default_channel
            if channel.global_keyprefix or type(channel).__name__ != "Channel":
                return set()  # A client that changes keys, or a Sentinel's.
            for raw in _messages(channel.client, channel.unacked_key):
                absent = {task_id for task_id in absent if task_id.encode() not in raw}
    except Exception:
        return set()  # A broker that does not answer, or more than is looked through.
    return absent


def _messages(client: Any, unacked: str) -> Iterator[bytes]:
    """All messages of the database, whatever their queues are called: a call may name any.

    First what waits, then what workers have taken, as messages go. Each has its task's id, as text,
    in its properties. Raises `OverflowError` where there is too much.
    """
    if client.dbsize() > MOST_KEYS:
        raise OverflowError
    left = MOST_MESSAGES
    for queue in client.scan_iter(count=1000, _type="list"):
        left -= client.llen(queue)
        if left < 0:
            raise OverflowError
        # From the head, where messages come: what moves meanwhile is seen twice, and not missed.
        for at in range(0, MOST_MESSAGES, CHUNK):
            part = client.lrange(queue, at, at + CHUNK - 1)
            yield from part
            if len(part) < CHUNK:
                break
    if client.hlen(unacked) > left:
        raise OverflowError
    yield from client.hvals(unacked)


lookers.append(not_in_any_queue)
