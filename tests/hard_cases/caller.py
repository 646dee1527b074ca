"""A process that calls the tasks as a project's own code does, and not by their names.

``python -m tests.hard_cases.caller`` is its program: it reads pickled calls, ``(task, args,
options)``, and answers each with the task id, or with the error.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from tests.hard_cases.workers import ROOT


class Caller:
    """The test's end of it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hard_cases.caller"], cwd=ROOT,
            env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def call(self, task: str, args: list[Any], options: Mapping[str, Any]) -> str:
        """Have the task called. Returns the task id of its result; raises what the call raises."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((task, args, {**options}), self._process.stdin)
        self._process.stdin.flush()
        answer: Any = pickle.load(self._process.stdout)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Call what is asked for, until the test ends."""
    import django

    django.setup()
    from tests.hard_cases.app import app

    app.loader.import_default_modules()
    while True:
        task, args, options = pickle.load(sys.stdin.buffer)
        try:
            answer: Any = app.tasks[task].apply_async(args, **options).id
        except Exception as error:
            answer = error
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
