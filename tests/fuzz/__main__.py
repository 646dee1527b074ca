"""``python -m tests.fuzz [TARGET...] [--seconds N] [--seed N]``, or ``TARGET FILE``."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".fuzz"
LONGEST_INPUT_BYTES = 4096
HANGS_SECONDS = 30
"""an input for which a target takes longer is a find"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if nothing was found, 1 otherwise, 2 for a mistake."""
    options = _options(arguments)
    if options.here:
        _fuzz(options.names[0], options.seconds, options.seed)
    with _settings():
        from tests.fuzz.targets import TARGETS

        names = options.names or list(TARGETS)
        if len(names) == 2 and Path(names[1]).is_file():
            TARGETS[names[0]](Path(names[1]).read_bytes())
            print("nothing is wrong with it")
            return 0
        if unknown := set(names) - set(TARGETS):
            print(
                f"There is no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}"
            )
            return 2
    seed = options.seed or random.randrange(1, 2**31)
    print(f"SEED={seed}", flush=True)
    # Each in a process of its own: atheris ends the process in which it runs.
    found = [name for name in names if _in_a_process(name, options.seconds, seed)]
    print(f"{len(names)} targets, {len(found)} with a find" + "".join(f"\n  {f}" for f in found))
    return 1 if found else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=60, help="of each target (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="of an earlier run")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django
    from django.test import override_settings

    from tests.fuzz.stores import CACHES, TASKLOCK

    django.setup()
    with override_settings(CACHES=CACHES, TASKLOCK=TASKLOCK):
        yield


def _in_a_process(name: str, seconds: int, seed: int) -> bool:
    """Whether a target has failed. It is ended with its process, whatever it does."""
    command = [sys.executable, "-m", "tests.fuzz", name, "--here"]
    command += ["--seconds", str(seconds), "--seed", str(seed)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False,
            timeout=seconds + 10 * HANGS_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        print(f"{name}: not over in time", flush=True)
        return True
    runs = [line for line in done.stderr.splitlines() if line.startswith("Done ")]
    said = [line for line in done.stderr.splitlines() if not line.startswith("INFO: Instr")]
    print(f"{name}:", runs[-1] if runs else "\n".join((done.stdout, *said)), flush=True)
    return done.returncode != 0 or not runs


def _fuzz(name: str, seconds: int, seed: int) -> None:
    """Run one target in this process, and end it: 0 if nothing was found."""
    import atheris

    with contextlib.ExitStack() as stack:
        with atheris.instrument_imports(include=["django_tasklock"]):
            stack.enter_context(_settings())
            from tests.fuzz.seeds import DICTIONARY, SEEDS
            from tests.fuzz.targets import TARGETS
        _fuzz_target(name, TARGETS[name], SEEDS[name], DICTIONARY.get(name, ()), seconds, seed)


def _fuzz_target(
    name: str,
    target: Callable[[bytes], None],
    seeds: Sequence[bytes],
    dictionary: Sequence[bytes],
    seconds: int,
    seed: int,
) -> None:
    import atheris

    corpus = FOLDER / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(content)
    options = {
        "max_total_time": seconds, "seed": seed, "max_len": LONGEST_INPUT_BYTES,
        "timeout": HANGS_SECONDS, "artifact_prefix": f"{FOLDER}/{name}-",
    }  # fmt: skip
    flags = [f"-{option}={value}" for option, value in options.items()]
    if dictionary:
        words = FOLDER / f"{name}.dict"
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in dictionary))
        flags.append(f"-dict={words}")
    atheris.Setup([sys.argv[0], *flags, str(corpus)], target)
    atheris.Fuzz()


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    sys.exit(main())
