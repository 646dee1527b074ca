"""The floor's two commands on a bare socket: what no client library can beat."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

import redis

from .peers import DELETE_IF_MINE, TTL_SECONDS

__all__ = ["RAW", "RawSocket"]

RAW = "raw socket, prepared bytes"


class RawSocket:
    """A `Column` for one lock, whose requests are built before the clock runs."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sha: Any = redis.Redis.from_url(url).script_load(DELETE_IF_MINE)
        self._set = _packed("SET", "raw", "token", "NX", "PX", str(TTL_SECONDS * 1000))
        self._delete = _packed("EVALSHA", str(sha), "1", "raw", "token")

    def acquire(self, name: str) -> Any:
        self._socket.sendall(self._set)
        return self._socket.recv(64) == b"+OK\r\n" or None

    def wait(self, name: str) -> Any:
        raise NotImplementedError

    def release(self, held: Any) -> None:
        self._socket.sendall(self._delete)
        self._socket.recv(64)


def _packed(*words: str) -> bytes:
    parts = [f"*{len(words)}\r\n", *(f"${len(word)}\r\n{word}\r\n" for word in words)]
    return "".join(parts).encode()
