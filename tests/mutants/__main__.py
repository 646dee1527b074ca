"""``python -m tests.mutants [NAME...] [--list]``: run the mutants."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.mutants.catalogue import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("django_tasklock", "tests", "example_project", "pyproject.toml")
NOTICED = ("FAILED tests/", "ERROR tests/", "VIOLATION")
"""how the lines begin that say what has failed"""
SECONDS = 600.0
"""how long the tests of one mutant may take; one that hangs is noticed too"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all mutants were noticed, 1 if one has survived, 2 for a mistake."""
    options = _options(arguments)
    unknown = set(options.names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        print(f"There is no mutant {', '.join(sorted(unknown))}; see --list")
        return 2
    chosen = [mutant for mutant in MUTANTS if mutant.name in options.names or not options.names]
    if options.list:
        print(*(f"{mutant.name}  ({mutant.file})" for mutant in chosen), sep="\n")
        return 0
    survived: list[str] = []
    with copied() as copy:
        if not options.trusted and not _whole_package_passes(copy, chosen):
            return 2
        for mutant in chosen:
            began = time.monotonic()
            noticed, by = _run(copy, mutant)
            if not noticed:
                survived.append(mutant.name)
            word = {True: "noticed ", False: "SURVIVED", None: "UNTRIED "}[noticed]
            print(f"{word}  {mutant.name}: {by} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"\n{len(chosen)} mutants, {len(survived)} survived")
    return 1 if survived else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; all by default")
    parser.add_argument("--list", action="store_true", help="name them, run nothing")
    parser.add_argument(
        "--trusted", action="store_true",
        help="do not run the tests on the whole package first, which must pass there",
    )  # fmt: skip
    return parser.parse_args(arguments)


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    """A copy of what is changed and run, for the time of the block."""
    with tempfile.TemporaryDirectory(prefix="tasklock-mutants-") as folder:
        for name in COPIED:
            here, there = ROOT / name, Path(folder, name)
            if here.is_dir():
                shutil.copytree(here, there, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(here, there)
        yield Path(folder)


@contextlib.contextmanager
def applied(copy: Path, mutant: Mutant) -> Iterator[bool]:
    """The copy has the mutant, for the time of the block. False: its file does not have once what
    is taken out, and is left as it is."""
    file = copy / mutant.file
    whole = file.read_text()
    is_there = whole.count(mutant.old) == 1
    try:
        if is_there:
            file.write_text(whole.replace(mutant.old, mutant.new))
        yield is_there
    finally:
        file.write_text(whole)


def _whole_package_passes(copy: Path, chosen: Sequence[Mutant]) -> bool:
    """A test that fails without a mutant would notice every one."""
    for command in dict.fromkeys(_command(mutant) for mutant in chosen):
        failed, by = tried(copy, command)
        if failed is not False:
            print(f"Without a mutant this does not pass: {' '.join(command)}\n{by}")
            return False
    return True


def _run(copy: Path, mutant: Mutant) -> tuple[bool | None, str]:
    """Whether the mutant was noticed, and by which test; None: its tests did not run."""
    with applied(copy, mutant) as is_there:
        if not is_there:
            return None, f"{mutant.file} does not have once what it takes out"
        return tried(copy, _command(mutant))


def _command(mutant: Mutant) -> tuple[str, ...]:
    return ("pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *mutant.tests)


def tried(copy: Path, command: Sequence[str]) -> tuple[bool | None, str]:
    """True: something failed, and what; False: all passed; None: nothing was tried."""
    # Python looks for the package in the current folder first, so it finds the copy.
    try:
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=copy, capture_output=True, text=True,
            check=False, timeout=SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return True, f"not over after {SECONDS:g} s"
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith(NOTICED)]
    by = (said or lines or [done.stderr[-2000:]])[0 if said else -1]
    if done.returncode == 0:
        return False, by
    if done.returncode < 0:
        # Of a job that was to be given up, and kills the process in which it runs.
        return True, f"the tests were killed by signal {-done.returncode}"
    # 1: tests failed; more: there were none, or they could not be read.
    return (True, by) if done.returncode == 1 else (None, done.stderr[-2000:] or by)


if __name__ == "__main__":
    sys.exit(main())
