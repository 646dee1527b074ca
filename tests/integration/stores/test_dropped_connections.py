"""Connections that nobody closes: the garbage collector finds no open socket."""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any
from weakref import getweakrefcount

import pytest
import redis

from django_tasklock._compat.redis_sockets import connect
from django_tasklock.stores.redis.connections import new_connection
from tests.servers import RedisServer


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What finalizers raise, which nobody can catch. Nothing is collected unless a test asks."""
    found: list[str] = []
    gc.collect()
    monkeypatch.setattr(sys, "unraisablehook", lambda info: found.append(str(info.exc_value)))
    gc.disable()
    yield found
    gc.enable()


def connection_on(server: RedisServer, made: socket.socket) -> Any:
    """A connection that gets this socket, which the collector finalizes before it, as the older."""
    connection = new_connection(redis.ConnectionPool.from_url(server.url))
    # They refer to each other, as a store and its pool do.
    connection.connect = lambda: setattr(connection, "_sock", made)
    return connection


def test_its_socket_is_closed_before_it_is_finalized(
    redis_server: RedisServer, unraisable: list[str]
) -> None:
    made = socket.create_connection(("127.0.0.1", redis_server.port))
    number = made.fileno()
    connection = connection_on(redis_server, made)
    connect(connection)
    del connection, made
    gc.collect()
    assert unraisable == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_one_that_connects_again_and_again_keeps_nothing_of_before(
    redis_server: RedisServer, unraisable: list[str]
) -> None:
    connection = new_connection(redis.ConnectionPool.from_url(redis_server.url))
    for _ in range(3):
        connection.disconnect()
        connect(connection)
    assert getweakrefcount(connection) == 1
    last = connection._sock
    del connection
    gc.collect()
    assert last.fileno() == -1
    assert unraisable == []
