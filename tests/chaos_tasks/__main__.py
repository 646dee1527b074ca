"""``python -m tests.chaos_tasks --tasks 10000 [--seed SEED] [--broker redis|rabbitmq]``."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.history import read
from tests.chaos_tasks.checker import check, report
from tests.chaos_tasks.run import Options, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos_tasks", description=__doc__)
    parser.add_argument("--tasks", type=int, default=1000, help="messages in all")
    parser.add_argument("--seed", default="", help="that of another run; by default a new one")
    parser.add_argument("--broker", choices=["redis", "rabbitmq"], default="redis")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pool", type=int, default=3, help="processes of each worker")
    parser.add_argument(
        "--pause", type=float, nargs=2, default=(0.2, 2.5), metavar=("LEAST", "MOST"),
        help="seconds from one fault to the next",
    )  # fmt: skip
    parser.add_argument("--folder", type=Path, help="for the history, which is kept there")
    arguments = parser.parse_args()
    seed = arguments.seed or secrets.token_hex(4)
    print(f"SEED={seed} TASKS={arguments.tasks} BROKER={arguments.broker}", flush=True)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="tasklock-chaos-tasks-"))
    folder.mkdir(parents=True, exist_ok=True)
    least, most = arguments.pause
    options = Options(
        arguments.tasks, seed, arguments.broker, arguments.workers, arguments.pool, (least, most)
    )
    run(folder, options)
    violations, story = check(read(folder))
    print(report(violations, story))
    if violations:
        print(f"SEED={seed}; the history is in {folder}")
    elif not arguments.folder:
        shutil.rmtree(folder)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
