"""What the commands of `tests.chaos` and `tests.chaos_tasks` have in common."""

from __future__ import annotations

import argparse
import secrets
import shutil
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

__all__ = ["BROKEN", "add_arguments", "play_and_judge", "seed_of"]

BROKEN = 3
"""the status of a command that says nothing about the package"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The seed of a run, and the folder of its history."""
    parser.add_argument("--seed", default="", help="that of another run; by default a new one")
    parser.add_argument("--folder", type=Path, help="for the history, which is kept there")


def seed_of(arguments: argparse.Namespace) -> str:
    """The seed that was given, or a new one."""
    return arguments.seed or secrets.token_hex(4)


def play_and_judge(
    prefix: str,
    seed: str,
    folder: Path | None,
    play: Callable[[Path], None],
    judge: Callable[[Path], int],
) -> int:
    """Play in a folder and judge its history; return what ``judge`` returns, 0 for no violation.
    `BROKEN`, if the run or the judgement broke off with an exception.

    A folder that was not asked for begins with ``prefix``, and is kept unless that is 0.
    """
    kept = folder or Path(tempfile.mkdtemp(prefix=prefix))
    kept.mkdir(parents=True, exist_ok=True)
    try:
        play(kept)
        status = judge(kept)
    except Exception:
        traceback.print_exc()
        status = BROKEN
    if status:
        print(f"SEED={seed}; the history is in {kept}")
    elif not folder:
        shutil.rmtree(kept)
    return status
