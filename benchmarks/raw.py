"""The floor's two commands on bare sockets: what no client library can beat."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

import redis

from .peers import DELETE_IF_MINE, TTL_SECONDS

__all__ = ["RAW", "RawSocket", "packed"]

RAW = "raw socket, prepared bytes"


class RawSocket:
    """A `Column` for one lock, whose requests are built before the clock runs. With several servers
    it has the lock on each of them, and asks them at the same time."""

    def __init__(self, *urls: str) -> None:
        self._sockets = [_connected(url) for url in urls]
        shas: list[Any] = [redis.Redis.from_url(url).script_load(DELETE_IF_MINE) for url in urls]
        self._set = packed("SET", "raw", "token", "NX", "PX", str(TTL_SECONDS * 1000))
        self._delete = packed("EVALSHA", str(shas[0]), "1", "raw", "token")

    def acquire(self, name: str) -> Any:
        return self.ask(self._set) == [b"+OK\r\n"] * len(self._sockets) or None

    def wait(self, name: str) -> Any:
        raise NotImplementedError

    def release(self, held: Any) -> None:
        self.ask(self._delete)

    def ask(self, request: bytes) -> list[bytes]:
        """Send a request to each server, and read the beginning of each reply."""
        for each in self._sockets:
            each.sendall(request)
        return [each.recv(64) for each in self._sockets]


def _connected(url: str) -> socket.socket:
    parts = urlsplit(url)
    made = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def packed(*words: bytes | str) -> bytes:
    """A command as it is sent."""
    texts = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%b\r\n" % (len(t), t) for t in texts)
