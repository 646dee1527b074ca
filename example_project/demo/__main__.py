from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from example_project.redis_binary import NoRedis
from example_project.servers import RedisServer, own_redis
from example_project.uses import USES
from example_project.uses.crew import Shown

ABOUT = {
    "redis": ["locks and messages are in Redis"],
    "database": [
        "no Redis: locks are in a database, messages in files (Celery's filesystem transport)",
        "a killed pool child's message goes back to its queue",
        "a whole worker's would be gone: `manage.py locks doctor --requeue` sends it again",
    ],
}
"""what the demo says of each store at its start"""


def main() -> int:
    options = arguments()
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, as_interrupt)
    try:
        with place_of_our_own(options.store) as state:
            return demo(options, state)
    except NoRedis as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. Nothing is left running.", file=sys.stderr)
        return 130


def demo(options: argparse.Namespace, state: Path) -> int:
    # Only now, as Django and Celery read the environment that was made for them.
    import django

    django.setup()
    from example_project.demo.run import run
    from example_project.demo.screen import Screen
    from example_project.demo.uses import show_uses
    from example_project.processes import NotReady

    started = time.monotonic()
    screen = Screen(quiet_stdout=options.json)
    for line in ABOUT[options.store]:
        screen.say(line)
    try:
        if options.examples is not None:
            examples = show_uses(screen, state, options.examples or USES)
            return examples_alone(examples, as_json=options.json)
        evidence = run(screen, state, videos=options.videos, submissions=options.submissions)
        if not options.videos_only:
            evidence.examples = show_uses(screen, state)
    except NotReady as error:
        print(error, file=sys.stderr)
        return 1
    evidence.problems += wrong(evidence.examples)
    seconds = time.monotonic() - started
    if options.json:
        summary = {"seconds": round(seconds, 1), **dataclasses.asdict(evidence)}
        print(json.dumps({"ok": not evidence.problems, **summary}, indent=2))
    else:
        screen.verdict(evidence, seconds)
    return 1 if evidence.problems else 0


def examples_alone(examples: Sequence[Shown], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps([dataclasses.asdict(example) for example in examples], indent=2))
    problems = wrong(examples)
    for problem in problems:
        print(f"WRONG: {problem}", file=sys.stderr)
    return 1 if problems else 0


def wrong(examples: Sequence[Shown]) -> list[str]:
    return [f"{each.title}: {problem}" for each in examples for problem in each.problems]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m example_project.demo",
        description="Exit status 0: every video was transcoded exactly once. 1: it says what is "
        "wrong.",
    )
    parser.add_argument(
        "--store",
        choices=list(ABOUT),
        default="redis",
        help="where the locks are; default: %(default)s",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--videos", type=int, default=8, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--submissions",
        type=int,
        default=5,
        metavar="N",
        help="of each video at once, besides the late ones; default: %(default)s",
    )
    parser.add_argument("--videos-only", action="store_true", help="without the short examples")
    parser.add_argument(
        "--examples",
        nargs="*",
        metavar="NAME",
        help="only the short examples of example_project/uses/: all, or those that are named",
    )
    options = parser.parse_args()
    for name in options.examples or []:
        if name not in USES:
            parser.error(f"there is no example {name!r}; there are: {', '.join(USES)}")
    return options


@contextlib.contextmanager
def place_of_our_own(store: str) -> Iterator[Path]:
    """A directory and a Redis for this run only, told to the settings by the environment.

    With the store "database" there is no Redis.
    """
    with (
        tempfile.TemporaryDirectory(prefix="tasklock-demo-") as folder,
        contextlib.ExitStack() as stack,
    ):
        os.environ["EXAMPLE_STATE"] = folder
        if store == "database":
            os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings_database"
        else:
            redis = stack.enter_context(own_redis())
            stack.callback(remove_our_keys, redis)
            os.environ.update(
                DJANGO_SETTINGS_MODULE="example_project.settings",
                EXAMPLE_REDIS_URL=redis.url,
                EXAMPLE_REDIS_PREFIX=redis.key_prefix or "demo",
            )
        yield Path(folder)


def remove_our_keys(server: RedisServer) -> None:
    """Leave somebody else's Redis as it was; our own ends with all that is in it."""
    if not server.key_prefix:
        return
    from redis import Redis

    with Redis.from_url(server.url) as client:
        for key in client.scan_iter(match=f"{server.key_prefix}*", count=1000):
            client.delete(key)


def as_interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
