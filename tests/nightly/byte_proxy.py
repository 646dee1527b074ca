"""A proxy that cuts a connection after so many bytes of a request, or of a reply."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any, Literal

from tests.proxy import Connection, CutProxy

__all__ = ["ByteProxy", "Direction"]

Direction = Literal["request", "reply"]


class Counted(Connection):
    """Cut where its proxy says so. What has reached the server is carried out."""

    proxy: Any

    def _requests(self) -> None:
        self._pass("request", self.client, self.server)

    def _replies(self) -> None:
        self._pass("reply", self.server, self.client)

    def _pass(self, direction: Direction, source: socket.socket, to: socket.socket) -> None:
        for data in self._chunks(source):
            allowed = self.proxy.allowed(direction, len(data))
            with contextlib.suppress(OSError):
                to.sendall(data[:allowed])
            if allowed < len(data):
                return


class ByteProxy(CutProxy):
    """Counts the bytes of each direction: those of all connections together, from the last `count`
    or `cut_after` on."""

    connection = Counted

    def __init__(self, target: tuple[str, int]) -> None:
        self._counting = threading.Lock()
        self._passed: dict[Direction, int] = {"request": 0, "reply": 0}
        self._cut_after: tuple[Direction, int] | None = None
        self.has_cut = False
        super().__init__(target)

    def __enter__(self) -> ByteProxy:
        return self

    def count(self) -> dict[Direction, int]:
        """Return the bytes that have passed since the last call, and count from 0 again."""
        with self._counting:
            passed, self._passed = self._passed, {"request": 0, "reply": 0}
            self._cut_after = None
            return passed

    def cut_after(self, direction: Direction, number: int) -> None:
        """Count from 0 again, and cut the connection on which byte ``number`` + 1 of this direction
        would pass. It happens once."""
        self.count()
        with self._counting:
            self._cut_after, self.has_cut = (direction, number), False

    def allowed(self, direction: Direction, length: int) -> int:
        """How many bytes of the next ones may pass; the connection is cut if those are fewer."""
        with self._counting:
            before = self._passed[direction]
            self._passed[direction] += length
            if self._cut_after is None or self._cut_after[0] != direction:
                return length
            left = self._cut_after[1] - before
            if left >= length:
                return length
            self._cut_after, self.has_cut = None, True
            return max(0, left)
