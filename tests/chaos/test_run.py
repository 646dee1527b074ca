"""A short run, and what a run leaves behind when it is broken off."""

from __future__ import annotations

import re
import secrets
import signal
import sys
from pathlib import Path

import pytest

from tests.chaos.short_runs import assert_breaks_off, finished

SECONDS = 10.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_nothing_is_violated_in_a_short_run(tmp_path: Path) -> None:
    """``make chaos`` plays for longer."""
    seed = secrets.token_hex(4)
    print(f"SEED={seed}")
    said = finished(_command(seed, SECONDS, tmp_path))
    granted = re.search(r"(\d+) granted", said)
    assert granted is not None, said
    assert int(granted[1]) > 20, f"too little happened: {said}"


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_broken_off_ends_its_processes(tmp_path: Path, by: signal.Signals) -> None:
    # Three players and a server.
    assert_breaks_off(
        _command("1", 60, tmp_path), by,
        lambda: len(list(tmp_path.glob("*.*.jsonl"))) >= 3, 4, ends_within=20,
    )  # fmt: skip


def _command(seed: str, seconds: float, folder: Path) -> list[str]:
    options = ["--seconds", str(seconds), "--seed", seed, "--folder", str(folder)]
    return [sys.executable, "-m", "tests.chaos", *options]
