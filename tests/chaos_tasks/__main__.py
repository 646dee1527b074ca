"""``python -m tests.chaos_tasks --tasks 10000 [--seed SEED] [--broker redis|rabbitmq]``."""

from __future__ import annotations

import argparse
import sys

from tests.chaos.command import add_arguments, play_and_judge, seed_of
from tests.chaos_tasks import checker
from tests.chaos_tasks.run import Options, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos_tasks", description=__doc__)
    parser.add_argument("--tasks", type=int, default=1000, help="messages in all")
    parser.add_argument("--broker", choices=["redis", "rabbitmq"], default="redis")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pool", type=int, default=3, help="processes of each worker")
    parser.add_argument(
        "--pause", type=float, nargs=2, default=(0.2, 2.5), metavar=("LEAST", "MOST"),
        help="seconds from one fault to the next",
    )  # fmt: skip
    add_arguments(parser)
    arguments = parser.parse_args()
    seed = seed_of(arguments)
    print(f"SEED={seed} TASKS={arguments.tasks} BROKER={arguments.broker}", flush=True)
    least, most = arguments.pause
    options = Options(
        arguments.tasks, seed, arguments.broker, arguments.workers, arguments.pool, (least, most)
    )
    return play_and_judge(
        "tasklock-chaos-tasks-", seed, arguments.folder,
        lambda folder: run(folder, options), checker.main,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
