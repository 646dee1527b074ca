"""A server that takes what sentry-sdk sends, on loopback."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Item = dict[str, Any]


class Sentry:
    """The items of the envelopes that have arrived, with their kinds."""

    def __init__(self, port: int) -> None:
        self.dsn = f"http://public@127.0.0.1:{port}/1"
        self._items: list[tuple[str, Item]] = []

    def take(self, envelope: bytes) -> None:
        """Keep the items: a line of JSON with kind and length before each."""
        _, _, rest = envelope.partition(b"\n")
        while rest:
            head, _, rest = rest.partition(b"\n")
            header = json.loads(head)
            length = header.get("length", rest.find(b"\n"))
            if header["type"] in ("event", "transaction"):
                self._items.append((header["type"], json.loads(rest[:length])))
            rest = rest[length + 1 :]

    def _of(self, kind: str) -> list[tuple[Item, str]]:
        """The items of a kind, each with the id of its task."""
        found = [item for one, item in list(self._items) if one == kind]
        return [(item, str(item.get("tags", {}).get("celery_task_id"))) for item in found]

    def transactions(self, task_id: str) -> list[Item]:
        """What has been traced of the runs of a message."""
        return [item for item, of in self._of("transaction") if of == task_id]

    def errors(self) -> list[tuple[str, str]]:
        """Each exception that the Celery integration has captured: its type and the task id."""
        return [
            (value["type"], task_id)
            for item, task_id in self._of("event")
            for value in item.get("exception", {}).get("values", [])
            if value["mechanism"]["type"] == "celery"
        ]

    def messages(self) -> list[str]:
        """The log lines that were reported as errors."""
        events = [item for item, _ in self._of("event")]
        return [str(item["logentry"]["message"]) for item in events if "logentry" in item]


@contextmanager
def receiving() -> Iterator[Sentry]:
    """A server for the time of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            packed = self.headers.get("Content-Encoding") == "gzip"
            sentry.take(gzip.decompress(body) if packed else body)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        sentry = Sentry(server.server_port)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield sentry
        finally:
            server.shutdown()
            thread.join()
