"""Connections that nobody closes: the garbage collector finds no open socket.

Each in a process of its own. In one that has run other tests, their threads may collect garbage
at the same time, drop some of theirs, or open a file that gets the number of the closed one.
"""

from __future__ import annotations

import subprocess
import sys

from tests.servers import RedisServer

BEGIN = """
import gc, os, socket, sys
import redis
from django_tasklock._compat.redis_sockets import connect
from django_tasklock.stores.redis.connections import new_connection

gc.disable()
host, port = "127.0.0.1", int(sys.argv[1])
connection = new_connection(redis.ConnectionPool(host=host, port=port))
"""

DROPPED_WITH_ITS_STORE = """
# The collector finalizes the socket first, as the older, and they are garbage by a circle, as a
# store and its pool are.
number = -1

def with_socket():
    global connection, number
    made = socket.create_connection((host, port))
    number = made.fileno()
    connection = new_connection(redis.ConnectionPool(host=host, port=port))
    dropped = connection
    dropped.connect = lambda: setattr(dropped, "_sock", made)

with_socket()
CONNECT
del connection
gc.collect()
try:
    os.fstat(number)
except OSError as error:
    print(error.strerror)
"""

CONNECTED_THREE_TIMES = """
from weakref import getweakrefcount

for _ in range(3):
    connection.disconnect()
    connect(connection)
last = connection._sock
print("references:", getweakrefcount(connection))
del connection
gc.collect()
print("number:", last.fileno())
"""


def what_it_prints(redis_server: RedisServer, program: str) -> tuple[str, str]:
    """What the program prints, and what finalizers have raised in it."""
    command = [sys.executable, "-W", "error", "-c", BEGIN + program, str(redis_server.port)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def test_its_socket_is_closed_before_it_is_finalized(redis_server: RedisServer) -> None:
    program = DROPPED_WITH_ITS_STORE.replace("CONNECT", "connect(connection)")
    assert what_it_prints(redis_server, program) == ("Bad file descriptor\n", "")


def test_without_ours_the_collector_warns_of_it(redis_server: RedisServer) -> None:
    """Else the test before proves nothing."""
    program = DROPPED_WITH_ITS_STORE.replace("CONNECT", "connection.connect()")
    _, raised = what_it_prints(redis_server, program)
    assert "ResourceWarning: unclosed <socket" in raised


def test_one_that_connects_again_and_again_keeps_nothing_of_before(
    redis_server: RedisServer,
) -> None:
    printed = what_it_prints(redis_server, CONNECTED_THREE_TIMES)
    assert printed == ("references: 1\nnumber: -1\n", "")
