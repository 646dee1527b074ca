"""``python -m tests.chaos --seconds 60 [--seed SEED] [--folder FOLDER]``."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.checker import check, report
from tests.chaos.history import read
from tests.chaos.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", default="", help="that of another run; by default a new one")
    parser.add_argument("--folder", type=Path, help="for the history, which is kept there")
    arguments = parser.parse_args()
    seed = arguments.seed or secrets.token_hex(4)
    print(f"SEED={seed} SECONDS={arguments.seconds:g}", flush=True)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="tasklock-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    run(folder, arguments.seconds, seed)
    violations, story = check(read(folder))
    print(report(violations, story))
    if violations:
        print(f"SEED={seed}; the history is in {folder}")
    elif not arguments.folder:
        shutil.rmtree(folder)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
