"""A loopback proxy between a client and a server, to break what networks break."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator


class Connection:
    """One client's connection and its twin to the server."""

    def __init__(self, proxy: CutProxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy = proxy
        self.client = client
        self.server = server
        self.losing_reply = False
        self.forgotten = False
        self._running = 2
        self.threads = [
            threading.Thread(target=self._requests, daemon=True),
            threading.Thread(target=self._replies, daemon=True),
        ]
        for thread in self.threads:
            thread.start()

    def cut(self) -> None:
        """End both sides; what is under way is lost."""
        for side in (self.client, self.server):
            with contextlib.suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                side.shutdown(socket.SHUT_RDWR)

    def _requests(self) -> None:
        for data in self._chunks(self.client):
            with self.proxy._lock:
                self.proxy.arrived += 1
            self.proxy._flowing.wait()
            if self.proxy._takes_reply_of(data):
                self.losing_reply = True
            time.sleep(self.proxy.latency)
            with contextlib.suppress(OSError):
                self.server.sendall(data)

    def _replies(self) -> None:
        for data in self._chunks(self.server):
            self.proxy._flowing.wait()
            if self.losing_reply:
                with self.proxy._lock:
                    self.proxy.lost_replies += 1
                break
            time.sleep(self.proxy.latency)
            with contextlib.suppress(OSError):
                self.client.sendall(data + self.proxy._repeated(data))

    def _chunks(self, source: socket.socket) -> Iterator[bytes]:
        try:
            with contextlib.suppress(OSError):
                while data := source.recv(65536):
                    if not self.forgotten:
                        yield data
        finally:
            self.cut()
            self._ended()

    def _ended(self) -> None:
        with self.proxy._lock:
            self._running -= 1
            if self._running == 0:
                self.client.close()
                self.server.close()
                self.proxy._connections.remove(self)


class CutProxy:
    """Listens on ``port`` and passes everything on to ``target``, until told otherwise.

    Args:
        target: host and port of the server behind it.

    ``with CutProxy(("127.0.0.1", 6379)) as proxy: ... proxy.port``
    """

    connection: type[Connection] = Connection

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.lost_replies = 0
        self.arrived = 0
        """how many requests have come, those that a pause keeps back too"""
        self.latency = 0.0
        """seconds that everything takes, each way"""
        self._to_turn_away = 0
        self._to_repeat: tuple[bytes, int] = (b"", 0)
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._to_lose: tuple[bytes, int] = (b"", 0)
        self._connections: list[Connection] = []
        self._closing = False
        # Bound but not listening: keeps the port ours while connections are refused.
        self._reservation = self._bind(0)
        self.port: int = self._reservation.getsockname()[1]
        self._listener: socket.socket | None = None
        self.accept()

    def __enter__(self) -> CutProxy:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """As a Redis URL."""
        return f"redis://127.0.0.1:{self.port}/0"

    def drop_reply(self, to: bytes = b"", times: int = 1) -> None:
        """Lose the reply of the next ``times`` requests that hold the bytes ``to``.

        The request reaches the server and is carried out; the client sees its connection cut.
        ``lost_replies`` tells that it has happened.
        """
        with self._lock:
            self._to_lose = (to, times)

    def repeat_reply(self, of: bytes, last: int = 0) -> None:
        """Deliver the next reply that holds the bytes ``of`` twice, as no proxy should.

        With ``last`` only its last bytes, so many: what follows cannot be read then.
        """
        with self._lock:
            self._to_repeat = (of, last)

    def say(self, data: bytes) -> None:
        """Deliver bytes on every open connection that no server has sent."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.client.sendall(data)

    def turn_away(self, times: int = 1) -> None:
        """Close the next ``times`` connections as soon as they are made."""
        with self._lock:
            self._to_turn_away = times

    def cut(self) -> int:
        """Cut every open connection, both ways; new ones are welcome. Returns how many."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.cut()
        return len(connections)

    def forget(self) -> None:
        """Deliver nothing more on the open connections, and tell nobody; new ones are welcome."""
        with self._lock:
            for connection in self._connections:
                connection.forgotten = True

    def pause(self) -> None:
        """Hold back everything, both ways; connections stay open."""
        self._flowing.clear()

    def resume(self) -> None:
        """Deliver what was held back and go on."""
        self._flowing.set()

    def refuse(self) -> None:
        """Refuse new connections (open ones live on; ``cut`` ends them)."""
        listener, self._listener = self._listener, None
        if listener is not None:
            # Wakes the thread that waits in accept, which a mere close would not.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def accept(self) -> None:
        """Take new connections again."""
        if self._listener is None:
            listener = self._listener = self._bind(self.port)
            listener.listen(512)
            threading.Thread(target=self._serve, args=(listener,), daemon=True).start()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """The server is not there, and has its data when it is back."""
        self.refuse()
        self.cut()
        try:
            yield
        finally:
            self.accept()

    def close(self) -> None:
        self.refuse()
        self.resume()
        with self._lock:
            self._closing = True
            connections = list(self._connections)
        self.cut()
        for connection in connections:
            for thread in connection.threads:
                thread.join(5)
        self._reservation.close()

    @staticmethod
    def _bind(port: int) -> socket.socket:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(("127.0.0.1", port))
        return bound

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        with self._lock:
            away, self._to_turn_away = self._to_turn_away > 0, max(0, self._to_turn_away - 1)
        if away:
            client.close()
            return
        try:
            server = socket.create_connection(self.target, timeout=5)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        for side in (client, server):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            if self._closing:
                client.close()
                server.close()
            else:
                self._connections.append(self.connection(self, client, server))

    def _takes_reply_of(self, request: bytes) -> bool:
        with self._lock:
            wanted, times = self._to_lose
            if times == 0 or wanted not in request:
                return False
            self._to_lose = (wanted, times - 1)
            return True

    def _repeated(self, reply: bytes) -> bytes:
        with self._lock:
            wanted, last = self._to_repeat
            if not wanted or wanted not in reply:
                return b""
            self._to_repeat = (b"", 0)
            return reply[-last:]
