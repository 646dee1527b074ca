"""Serves the site, its static files with it, until its input ends: see themes.py.

``python -m tests.themed_site`` prints the port.
"""

from __future__ import annotations

import os
import sys
import threading
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import django

django.setup()

from django.contrib.staticfiles.handlers import StaticFilesHandler  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402


class Server(ThreadingMixIn, WSGIServer):
    """A thread for each request: a browser asks for many files at once."""

    daemon_threads = True
    request_queue_size = 64


class Quiet(WSGIRequestHandler):
    """Logs no request."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    site = StaticFilesHandler(get_wsgi_application())
    server = make_server("127.0.0.1", 0, site, server_class=Server, handler_class=Quiet)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    os._exit(0)  # no open connection of a browser keeps it


if __name__ == "__main__":
    main()
