"""
A process that does with locks what it is told, so that it can be stopped and killed meanwhile.

``Agent()`` starts one with this test's caches and locks; ``python -m tests.agent`` is its program:
it reads one JSON request a line, ``[verb, arguments]``, and writes one JSON answer a line.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from tests.waiting import PATIENCE


class Agent:
    """The test's end of an agent. As a context manager it ends the process, however it is."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.agent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    @property
    def pid(self) -> int:
        return self.process.pid

    def ask(self, verb: str, **arguments: Any) -> Any:
        """Have something done, and return the answer."""
        self.tell(verb, **arguments)
        return self.answer()

    def tell(self, verb: str, **arguments: Any) -> None:
        """Have something done, without waiting for the `answer`."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([verb, arguments]) + "\n")

    def answer(self, within: float = PATIENCE) -> Any:
        """The answer to the oldest request that has none."""
        output = self.process.stdout
        assert output is not None
        # One answer at a time: the buffer never holds a second one.
        news = select.poll()  # select() cannot wait for a number above 1023.
        news.register(output, select.POLLIN)
        assert news.poll(within * 1000), f"no answer within {within} s"
        line = output.readline()
        assert line, f"the agent is gone: {self.process.wait()}"
        return json.loads(line)

    def kill(self) -> None:
        """SIGKILL, and wait until it is dead."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGSTOP, and wait until it stands."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that shares this test's caches, locks and databases."""
    from django.conf import settings
    from django.db import connections

    databases = {alias: connections.settings[alias] for alias in connections if alias != "default"}

    env = os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        "TASKLOCK_TEST_CACHES": json.dumps(settings.CACHES),
        "TASKLOCK_TEST_DATABASE": str(connections.settings["default"]["NAME"]),
        "TASKLOCK_TEST_DATABASES": json.dumps(databases, default=str),
    }
    if getattr(settings, "TASKLOCK", None) is not None:
        env["TASKLOCK_TEST_TASKLOCK"] = json.dumps(settings.TASKLOCK)
    return env | more


def run_python(program: str, *arguments: str, **more: str) -> str:
    """What a program printed that runs in a process of its own, with Django set up there."""
    text = f"import django\ndjango.setup()\n{program}"
    if "monkey" in program:
        text = program
    done = subprocess.run(
        [sys.executable, "-c", text, *arguments],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class _Verbs:
    """What an agent can do."""

    def __init__(self) -> None:
        self.lease: Any = None

    def acquire(self, **arguments: Any) -> Any:
        from django_tasklock import locks

        began = time.monotonic()
        self.lease = locks.acquire(**arguments)
        if self.lease is None:
            return None
        waited = time.monotonic() - began
        return {"token": self.lease.token, "fence": self.lease.fence, "waited": waited}

    def wait_meanwhile(self, **arguments: Any) -> None:
        """`acquire`, in a thread of its own."""
        threading.Thread(target=lambda: self.acquire(**arguments), daemon=True).start()

    def release(self) -> bool:
        return bool(self.lease.release())

    def fork(self) -> int:
        """A child that does nothing, and outlives us unless it is killed."""
        pid = os.fork()
        if pid == 0:
            os.close(1)
            time.sleep(PATIENCE)
            os._exit(0)
        return pid


def main() -> None:
    import django

    django.setup()
    verbs = _Verbs()
    for line in sys.stdin:
        verb, arguments = json.loads(line)
        try:
            answer = getattr(verbs, verb)(**arguments)
        except Exception as error:
            answer = {"error": type(error).__name__, "says": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
