"""A process with the project's code and settings, which does what a test asks for.

``python -m tests.stage.caller`` is its program: it imports everything once, and forks a process for
each question. Such a process may be killed, and changes nothing for the next one.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import socket
import socketserver
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import django
from django.core.management import call_command

from tests.stage.workers import ROOT

HOST = "127.0.0.1"


class Caller:
    """The test's end of it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.stage.caller"], cwd=ROOT, env=environment,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._address = HOST, int(self._process.stdout.readline())

    def ask(self, function: Callable[..., str], *arguments: Any, within: float = 60.0) -> str:
        """What the function returns; what it raises is raised here. EOFError: it was killed."""
        with (
            socket.create_connection(self._address, within) as connection,
            connection.makefile("rwb") as stream,
        ):
            pickle.dump((function, arguments), stream)
            stream.flush()
            answer = pickle.load(stream)
        if isinstance(answer, BaseException):
            raise answer
        return str(answer)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def call(task: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> str:
    from tests.stage.app import app

    task_id: str = app.tasks[task].apply_async(args, **options).id
    return task_id


def run(source: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(source, {"__name__": "__main__"})
    return printed.getvalue()


def command(arguments: Sequence[str], options: Mapping[str, Any]) -> str:
    """What ``manage.py locks`` prints. A doctor who finds something exits."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        call_command("locks", *arguments, **options)
    return printed.getvalue()


class Answer(socketserver.StreamRequestHandler):
    """What the process of one question does."""

    def handle(self) -> None:
        function, arguments = pickle.load(self.rfile)
        try:
            answer = function(*arguments)
        except BaseException as error:
            traceback.print_exc()  # The error does not take it along.
            answer = error
        pickle.dump(answer, self.wfile)


class Answers(socketserver.ForkingTCPServer):
    """Ends with the test."""

    parent = os.getppid()

    def service_actions(self) -> None:
        """Look, about twice a second."""
        super().service_actions()
        if os.getppid() != self.parent:
            sys.exit()


def main() -> None:
    """Import everything, say the port, and answer until the test ends."""
    django.setup()
    from tests.stage.app import app

    app.loader.import_default_modules()
    app.finalize()
    with Answers((HOST, 0), Answer) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
