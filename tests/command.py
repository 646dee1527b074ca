"""``manage.py locks`` in this process, and what it prints."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

from django.core.management import call_command

__all__ = ["doctor", "doctor_json", "run", "run_json", "shell"]


def run(*arguments: str) -> str:
    """What the command prints on stdout."""
    out = io.StringIO()
    call_command("locks", *arguments, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def run_json(*arguments: str) -> Any:
    """What it prints with ``--format json``."""
    return json.loads(run(*arguments, "--format", "json"))


def doctor(*arguments: str) -> tuple[str, int]:
    """What the doctor prints, and its exit status."""
    out = io.StringIO()
    try:
        call_command("locks", "doctor", *arguments, stdout=out, stderr=io.StringIO())
    except SystemExit as error:
        return out.getvalue(), int(str(error.code))
    return out.getvalue(), 0


def doctor_json(*arguments: str) -> tuple[list[dict[str, Any]], int]:
    said, status = doctor("--format", "json", *arguments)
    return json.loads(said), status


def shell(env: dict[str, str], *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with pipes."""
    usual = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "django", "locks", *arguments]
    return subprocess.run(command, env=env, text=True, timeout=180, **{**usual, **options})
