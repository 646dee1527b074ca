"""A network that takes its time: what is sent to a server, and what it answers, arrives later.

One process passes everything on, each piece a fixed time after it came; what comes meanwhile is
not held up by it. The kernel's own delay (`tc netem`) would be nearer to a network: it needs root,
and a module that many kernels have not.
"""

from __future__ import annotations

import heapq
import multiprocessing
import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

__all__ = ["delayed"]

PIECE_BYTES = 65536


@contextmanager
def delayed(ports: Sequence[int], seconds: float) -> Iterator[list[int]]:
    """Yield a port for each of the servers' ``ports`` on this host, from which the server is so
    many seconds away, each way."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_pass_on, args=(list(ports), seconds, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.close()
        child.join(10)
        child.kill()


def _pass_on(ports: Sequence[int], seconds: float, pipe: Any) -> None:
    with suppress(OSError):  # By default Linux ends a pause up to 50 us late.
        Path("/proc/self/timerslack_ns").write_text("1000")
    listeners = {socket.create_server(("127.0.0.1", 0)): port for port in ports}
    pipe.send([listener.getsockname()[1] for listener in listeners])
    peers: dict[socket.socket, socket.socket] = {}
    due: list[tuple[float, int, socket.socket, bytes]] = []
    numbers = count()
    while True:
        pause = max(0.0, due[0][0] - time.monotonic()) if due else None
        # Unlike those of poll and epoll, its pauses are not rounded up to milliseconds.
        ready: list[Any] = select.select([pipe, *listeners, *peers], [], [], pause)[0]
        now = time.monotonic()
        for source in ready:
            if source is pipe:
                return  # Its other end was closed.
            if source in listeners:
                client, server = source.accept()[0], _connected(listeners[source])
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peers |= {client: server, server: client}
            elif source in peers:
                data = b""
                with suppress(OSError):
                    data = source.recv(PIECE_BYTES)
                if data:
                    heapq.heappush(due, (now + seconds, next(numbers), peers[source], data))
                else:
                    for side in (source, peers.pop(source)):
                        peers.pop(side, None)
                        side.close()
        while due and due[0][0] <= time.monotonic():
            _, _, target, data = heapq.heappop(due)
            with suppress(OSError):
                target.sendall(data)


def _connected(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made
