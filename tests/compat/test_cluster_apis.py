"""What redis-py does not document, and the store on a cluster uses, is still there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.exceptions import AskError, MovedError, RedisError, ResponseError

from django_tasklock._compat import redis as redis_compat
from django_tasklock._compat import redis_cluster
from tests.servers import RedisServer

ECHO = b"return {ARGV[#ARGV], ARGV[1]}"


@pytest.fixture
def connection(redis_server: RedisServer) -> Iterator[Any]:
    pool: Any = redis.ConnectionPool.from_url(redis_server.url, protocol=2)
    made = redis_compat.make_connection(pool, redis_compat.connection_options(pool))
    yield made
    made.disconnect()


@pytest.mark.parametrize("packs", [True, False])
def test_exchange_many(connection: Any, packs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not packs:
        monkeypatch.setattr(redis_compat, "pack", None)
    commands = [
        (b"EVAL", ECHO, b"0", b"a", b"1"),
        (b"EVALSHA", b"0" * 40, b"0", b"2"),
        (b"EVAL", b"return redis.call('NOPE')", b"0", b"3"),
        (b"EVAL", ECHO, b"0", b"b", b"4"),
    ]
    first, missing, wrong, last = redis_cluster.exchange_many(connection, commands)
    assert (first, missing, last) == (b"a", redis_compat.NO_SCRIPT, b"b")
    assert isinstance(wrong, ResponseError)


def test_a_reply_to_another_command_is_an_error(connection: Any) -> None:
    with pytest.raises(redis.ConnectionError, match="another command"):
        redis_cluster.exchange_many(connection, [(b"EVAL", b"return {'x', 1}", b"0", b"1")])


@pytest.mark.parametrize("kind", [MovedError, AskError])
def test_redirections_have_parts(kind: type[RedisError]) -> None:
    error: Any = kind("1584 127.0.0.1:7001")
    assert redis_cluster.redirection(error) == (1584, "127.0.0.1", 7001)
    unknown: Any = kind("1584 :7001")
    assert redis_cluster.redirection(unknown) == (1584, "", 7001)


def test_what_another_thread_closes_is_a_connection_error() -> None:
    with pytest.raises(redis.ConnectionError):
        redis_compat.unless_closed(int, None)
