"""``python -m tests.mutants.on_tasks [NAME...] [--tasks 250] [--seeds 3]``.

Runs `tests.chaos_tasks` on the mutants that it must notice (``chaos_tasks=True`` in the catalogue;
others may be named), with up to so many seeds each.

Not marked, because two hundred messages do not show them: "claim without the fence compare" needs a
process that is stopped between its acquire and its claim; "finish whatever the status" is covered
by the fence that all rows have here; the others survived the runs that were tried.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.__main__ import applied, copied, tried
from tests.mutants.catalogue import MUTANTS, Mutant

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all were noticed, 1 if one has survived, 2 if the whole package fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.on_tasks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which")
    parser.add_argument("--tasks", type=int, default=250, help="messages of each run")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each, at most")
    parser.add_argument("--trusted", action="store_true", help="not the whole package first")
    options = parser.parse_args(arguments)
    chosen = [
        mutant for mutant in MUTANTS
        if (mutant.name in options.names if options.names else mutant.chaos_tasks)
    ]  # fmt: skip
    survived = 0
    with copied() as copy:
        for seed in () if options.trusted else range(1, options.seeds + 1):
            failed, by = tried(copy, _command(options.tasks, seed))
            if failed is not False:
                print(f"Without a mutant this does not pass, with the seed {seed}: {by}")
                return 2
        for mutant in chosen:
            survived += not _noticed(copy, mutant, options.tasks, options.seeds)
    print(f"\n{len(chosen)} mutants, {survived} survived")
    return 1 if survived else 0


def _noticed(copy: Path, mutant: Mutant, tasks: int, seeds: int) -> bool:
    began = time.monotonic()
    with applied(copy, mutant) as is_there:
        assert is_there, mutant.name
        for seed in range(1, seeds + 1):
            failed, by = tried(copy, _command(tasks, seed))
            if failed:
                took = time.monotonic() - began
                print(f"noticed   {mutant.name}: {by[:120]} (run {seed}, {took:.0f} s)", flush=True)
                return True
    took = time.monotonic() - began
    print(f"SURVIVED  {mutant.name}: {seeds} runs ({took:.0f} s)", flush=True)
    return False


def _command(tasks: int, seed: int) -> list[str]:
    options = ["--tasks", str(tasks), "--seed", str(seed), "--workers", "2"]
    return ["tests.chaos_tasks", *options, "--pause", "0.1", "0.6"]


if __name__ == "__main__":
    sys.exit(main())
