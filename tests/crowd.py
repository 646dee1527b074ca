"""A program that forks and keeps a ledger, run by a test."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.agent import environment

__all__ = ["run_crowd"]


def run_crowd(
    module: str,
    folder: Path,
    *numbers: int,
    within: float = 280,
    variables: Mapping[str, str] | None = None,
) -> list[list[str]]:
    """Run ``python -m module LEDGER SEED NUMBERS...`` to its end. Returns the ledger's words, line
    by line.

    Whatever happens, none of its processes outlives this call: they would load the machine while
    other tests run. ``within``: seconds, after which `subprocess.TimeoutExpired` is raised.
    ``variables`` are added to the environment. Asserts that the program ended well.
    """
    seed, ledger = random.randrange(2**32), folder / "ledger"
    print(f"seed {seed}")
    process = subprocess.Popen(
        [sys.executable, "-m", module, *map(str, (ledger, seed, *numbers))],
        env=environment(**(variables or {})),
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _, errors = process.communicate(timeout=within)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with process:  # Which closes its pipe, and waits.
            pass
    assert process.returncode == 0, errors.decode(errors="replace")
    return [line.split() for line in ledger.read_text().splitlines()]
