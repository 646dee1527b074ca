"""A proxy that cuts a connection after so many bytes of a request, or of a reply."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Literal

__all__ = ["ByteProxy", "Direction"]

Direction = Literal["request", "reply"]


class ByteProxy:
    """Passes everything on to ``target``, and counts the bytes of each direction.

    ``with ByteProxy(("127.0.0.1", 6379)) as proxy: ... proxy.url``. The bytes are those of all
    connections together, from the last `count` or `cut_after` on.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._passed: dict[Direction, int] = {"request": 0, "reply": 0}
        self._cut_after: tuple[Direction, int] | None = None
        self.has_cut = False
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> ByteProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            _end(each)

    @property
    def url(self) -> str:
        """As a Redis URL."""
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def count(self) -> dict[Direction, int]:
        """Return the bytes that have passed since the last call, and count from 0 again."""
        with self._lock:
            passed, self._passed = self._passed, {"request": 0, "reply": 0}
            self._cut_after = None
            return passed

    def cut_after(self, direction: Direction, number: int) -> None:
        """Count from 0 again, and cut the connection on which byte ``number`` + 1 of this direction
        would pass. It happens once."""
        with self._lock:
            self._passed = {"request": 0, "reply": 0}
            self._cut_after = (direction, number)
            self.has_cut = False

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            for side in (client, server):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets.append(side)
            for way in ((client, server, "request"), (server, client, "reply")):
                threading.Thread(target=self._pass, args=way, daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket, direction: Direction) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                allowed = self._allowed(direction, len(data))
                if allowed:
                    to.sendall(data[:allowed])
                if allowed < len(data):
                    break
        # The server has what it was sent, and acts on a whole request, though nobody hears of it.
        _end(source, at_once=direction == "request")
        _end(to, at_once=direction == "reply")

    def _allowed(self, direction: Direction, length: int) -> int:
        with self._lock:
            before = self._passed[direction]
            self._passed[direction] += length
            if self._cut_after is None or self._cut_after[0] != direction:
                return length
            left = self._cut_after[1] - before
            if left >= length:
                return length
            self._cut_after = None
            self.has_cut = True
            return max(0, left)


def _end(side: socket.socket, *, at_once: bool = True) -> None:
    with contextlib.suppress(OSError):
        if at_once:
            side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        side.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        side.close()
