"""``python -m tests.chaos --seconds 60 [--seed SEED] [--folder FOLDER]``."""

from __future__ import annotations

import argparse
import sys

from tests.chaos import checker
from tests.chaos.command import add_arguments, play_and_judge, seed_of
from tests.chaos.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    add_arguments(parser)
    arguments = parser.parse_args()
    seconds, seed = arguments.seconds, seed_of(arguments)
    print(f"SEED={seed} SECONDS={seconds:g}", flush=True)
    return play_and_judge(
        "tasklock-chaos-", seed, arguments.folder,
        lambda folder: run(folder, seconds, seed), checker.main,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
