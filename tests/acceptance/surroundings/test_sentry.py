"""Sentry's SDK replaces the tracer of Celery's tasks; it sends errors, and only errors, on."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.acceptance.hard_cases.stage import Stage
from tests.acceptance.surroundings.recovery import need, recovers
from tests.waiting import until

pytestmark = pytest.mark.slow


class Sink(ThreadingHTTPServer):
    """Takes what the SDK sends."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Envelope)
        self.events: list[dict[str, Any]] = []
        self.transactions: list[dict[str, Any]] = []

    @property
    def dsn(self) -> str:
        return f"http://key@127.0.0.1:{self.server_port}/1"

    def errors(self) -> list[str]:
        """The types of the exceptions that were sent."""
        return [
            value["type"]
            for event in self.events
            for value in (event.get("exception") or {}).get("values", ())
        ]


class Envelope(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Sink)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        lines = body.split(b"\n")[1:]
        for header, payload in zip(lines[::2], lines[1::2], strict=False):
            kind = json.loads(header or b"{}").get("type")
            if kind == "event":
                self.server.events.append(json.loads(payload))
            elif kind == "transaction":
                self.server.transactions.append(json.loads(payload))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def sink() -> Iterator[Sink]:
    with Sink() as sink:
        thread = threading.Thread(target=sink.serve_forever, daemon=True)
        thread.start()
        yield sink
        sink.shutdown()
        thread.join()


def test_errors_of_bodies_reach_sentry_and_nothing_else(stage: Stage, sink: Sink) -> None:
    need("sentry_sdk")
    stage.worker(
        concurrency=2,
        conf={"imports": ["tests.acceptance.surroundings.with_sentry"]},
        environment={"SENTRY_SINK": sink.dsn},
    )
    # A double that is skipped, a child that is killed and a retry are no errors of a body.
    recovers(stage)
    retried = stage.job()
    done = stage.send("guarded_retry", retried, [{"then": "retry"}, {}])
    assert done.get(timeout=60) == f"done:{retried}"
    # One that raises is.
    failed = stage.job()
    broken = stage.send("guarded", failed, [{"then": "raise"}])
    with pytest.raises(Exception, match="as the script says"):
        broken.get(timeout=60)
    assert stage.row(failed)[0] == "failed"
    until(lambda: "Boom" in sink.errors(), "the error at Sentry")
    assert set(sink.errors()) <= {"Boom", "WorkerLostError"}
    assert sink.errors().count("Boom") == 1
    until(lambda: {"guarded"} & {each["transaction"] for each in sink.transactions}, "its trace")
    stage.assert_settled()
