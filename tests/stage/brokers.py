"""The message brokers of the hard cases: what is in their queues, and how to cut them off."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import kombu
import psutil
import redis

from tests import needs
from tests.servers import RedisServer


def connect(server: RedisServer, database: int = 0) -> redis.Redis:
    """A client of one of our own servers."""
    return redis.Redis(port=server.port, db=database, socket_timeout=5)


def address(server: RedisServer, database: int = 0) -> str:
    """The URL of one of the server's databases."""
    return f"redis://127.0.0.1:{server.port}/{database}"


class RedisBroker:
    """Celery's Redis transport on an own server.

    Args:
        visibility: seconds after which a message without an acknowledgement is delivered again.
    """

    looks = 4

    def __init__(self, server: RedisServer, visibility: float) -> None:
        self.client = connect(server)
        self.url = address(server)
        self.options: dict[str, Any] = {
            "visibility_timeout": visibility,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            # A worker killed while it holds this mutex stops all redelivery for as long.
            "unacked_mutex_expire": 5,
        }

    def count(self, queue: str) -> int:
        """Messages that wait in the queue, or that a worker has not acknowledged."""
        held = [json.loads(value) for value in self.client.hvals("unacked")]
        return int(self.client.llen(queue)) + len([each for each in held if each[2] == queue])

    @contextmanager
    def still(self) -> Iterator[set[str]]:
        """No message moves meanwhile; yields the ids of those in the queue and unacknowledged.

        A worker takes a message from the queue first and notes that it has it afterwards. Killed
        in between it takes the message along, as nothing above the transport can prevent.
        """
        self.client.client_pause(5000, all=False)
        try:
            raw = [json.loads(value)[0] for value in self.client.hvals("unacked")]
            for key in self.client.scan_iter(_type="list"):
                raw += [json.loads(value) for value in self.client.lrange(key, 0, -1)]
            yield {str(message["headers"]["id"]) for message in raw if "id" in message["headers"]}
        finally:
            self.client.client_unpause()

    def end(self, pid: int, kill: Callable[[], object]) -> None:
        """Kill a worker's main process and close its connections.

        A pool process that was forked meanwhile has them too, and keeps them open as long as it
        lives or is stopped: Redis gives the next message to a dead worker, which loses it.
        """
        port = self.client.get_connection_kwargs()["port"]
        found = psutil.Process(pid).net_connections("tcp")
        ours = [each.laddr.port for each in found if getattr(each.raddr, "port", 0) == port]
        kill()
        for mine in ours:
            self.client.client_kill_filter(addr=f"127.0.0.1:{mine}")

    def cut(self) -> None:
        for kind in ("normal", "pubsub"):
            self.client.client_kill_filter(_type=kind, skipme=True)

    def drop(self, queue: str) -> None:
        """Close our connection; the queues go with the server."""
        self.client.close()


class RabbitBroker:
    """Celery's AMQP transport, on a virtual host of its own where the URL names one."""

    looks = 1

    def __init__(self, url: str) -> None:
        self.url = url
        self.host = unquote(urlsplit(url).path[1:]) or "/"
        self.options: dict[str, Any] = {}

    def count(self, queue: str) -> int:
        listing = ("--formatter=json", "list_queues", "-p", self.host, "name", "messages")
        output = self._ctl(*listing)
        rows = {row["name"]: row["messages"] for row in json.loads(output)}
        return int(rows.get(queue, 0))

    @contextmanager
    def still(self) -> Iterator[None]:
        """Nothing to be careful about: what a dead worker has not acknowledged is delivered."""
        yield None

    def end(self, pid: int, kill: Callable[[], object]) -> None:
        """Kill a worker's main process; what it has not acknowledged is not lost."""
        kill()

    def cut(self) -> None:
        """Have the broker close every connection of the virtual host."""
        self._ctl("close_all_connections", "--vhost", self.host, "a test")

    def drop(self, queue: str) -> None:
        with kombu.Connection(self.url) as connection:
            channel: Any = connection.default_channel
            channel.queue_delete(queue)

    def _ctl(self, *arguments: str) -> bytes:
        command = [needs.program("rabbitmqctl"), "--quiet", *arguments]
        return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout


Broker = RedisBroker | RabbitBroker
