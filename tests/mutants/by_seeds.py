"""How `on_locks` and `on_tasks` play games with mutants."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.mutants.__main__ import applied, copied, tried
from tests.mutants.catalogue import MUTANTS, Mutant

__all__ = ["add_arguments", "play"]

Command = Callable[[int], Sequence[str]]
"""what to run with a seed"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="which")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each, at most")
    parser.add_argument("--trusted", action="store_true", help="not the whole package first")


def play(options: argparse.Namespace, is_marked: Callable[[Mutant], bool], command: Command) -> int:
    """Return 0 if all mutants were noticed, 1 if one has survived, 2 if the whole package fails or
    no mutant was chosen."""
    chosen = [
        mutant for mutant in MUTANTS
        if (mutant.name in options.names if options.names else is_marked(mutant))
    ]  # fmt: skip
    if not chosen:
        print("There is no such mutant; see python -m tests.mutants --list")
        return 2
    survived = 0
    with copied() as copy:
        for seed in () if options.trusted else range(1, options.seeds + 1):
            failed, by = tried(copy, command(seed))
            if failed is not False:
                print(f"Without a mutant this does not pass, with the seed {seed}: {by}")
                return 2
        for mutant in chosen:
            survived += not _noticed(copy, mutant, options.seeds, command)
    print(f"\n{len(chosen)} mutants, {survived} survived")
    return 1 if survived else 0


def _noticed(copy: Path, mutant: Mutant, seeds: int, command: Command) -> bool:
    began = time.monotonic()
    with applied(copy, mutant) as is_there:
        assert is_there, mutant.name
        for seed in range(1, seeds + 1):
            failed, by = tried(copy, command(seed))
            if failed is None:
                print(f"BROKEN    {mutant.name}: {by[-300:]} (run {seed})", flush=True)
            if failed:
                took = time.monotonic() - began
                print(f"noticed   {mutant.name}: {by[:120]} (run {seed}, {took:.0f} s)", flush=True)
                return True
    took = time.monotonic() - began
    print(f"SURVIVED  {mutant.name}: {seeds} runs ({took:.0f} s)", flush=True)
    return False
