"""``python -m tests.mutants.on_locks [NAME...] [--seconds 40] [--seeds 3]``.

Runs `tests.nightly.chaos` on the mutants that it must notice (``chaos=True`` in the catalogue;
others may be named), with up to so many seeds each.

Not marked: "clear without its token compare", because the caller compares first, and the script for
the moment in between; a renewal that is missing, or does not see that the lease is gone, which the
holder's own clock makes good; a lease that nobody learns of, as after a hand-over to the dead or a
lost reply, which ends by itself; and what a short run meets by chance: a waiter that leaves at the
very moment of its hand-over, a fence that an hour's step back would repeat.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.mutants.by_seeds import add_arguments, play

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all were noticed, 1 if one has survived, 2 if the whole package fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.on_locks", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--seconds", type=float, default=40.0, help="of each run")
    options = parser.parse_args(arguments)
    return play(
        options, lambda mutant: mutant.chaos,
        lambda seed: [
            "tests.nightly.chaos", "--seconds", str(options.seconds), "--seed", str(seed),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
