"""``python -m tests.mutants.on_tasks [NAME...] [--tasks 250] [--seeds 3]``.

Runs `tests.chaos_tasks` on the mutants that it must notice (``chaos_tasks=True`` in the catalogue;
others may be named), with up to so many seeds each.

Not marked, because two hundred messages do not show them: "finish whatever the status" is covered
by the fence that all rows have here. "late run that acknowledges its redelivery too" and the other
two of late runs need a redelivery that dies just after the late run has ended, and its bodies take
a tenth of a second. "dead child that nobody notices" still has its lock cleared within moments.
The others survived the runs that were tried.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.mutants.by_seeds import add_arguments, play

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all were noticed, 1 if one has survived, 2 if the whole package fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.on_tasks", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--tasks", type=int, default=250, help="messages of each run")
    options = parser.parse_args(arguments)
    return play(
        options, lambda mutant: mutant.chaos_tasks,
        lambda seed: [
            "tests.chaos_tasks", "--tasks", str(options.tasks), "--seed", str(seed),
            "--workers", "2", "--pause", "0.1", "0.6",
        ],
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
