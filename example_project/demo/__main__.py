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
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from example_project.servers import NoRedis, RedisServer, own_redis


def main() -> int:
    options = arguments()
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, as_interrupt)
    try:
        with place_of_our_own() as state:
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
    from example_project.processes import NotReady

    started = time.monotonic()
    screen = Screen(quiet_stdout=options.json)
    try:
        evidence = run(screen, state, videos=options.videos, submissions=options.submissions)
    except NotReady as error:
        print(error, file=sys.stderr)
        return 1
    seconds = time.monotonic() - started
    if options.json:
        summary = {"seconds": round(seconds, 1), **dataclasses.asdict(evidence)}
        print(json.dumps({"ok": not evidence.problems, **summary}, indent=2))
    else:
        screen.verdict(evidence, seconds)
    return 1 if evidence.problems else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m example_project.demo",
        description="Exit status 0: every video was transcoded exactly once. 1: it says what is "
        "wrong.",
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
    return parser.parse_args()


@contextlib.contextmanager
def place_of_our_own() -> Iterator[Path]:
    """A directory and a Redis for this run only, told to the settings by the environment."""
    with tempfile.TemporaryDirectory(prefix="tasklock-demo-") as state, own_redis() as redis:
        os.environ.update(
            DJANGO_SETTINGS_MODULE="example_project.settings",
            EXAMPLE_STATE=state,
            EXAMPLE_REDIS_URL=redis.url,
            EXAMPLE_REDIS_PREFIX=redis.key_prefix or "demo",
        )
        try:
            yield Path(state)
        finally:
            if redis.key_prefix:
                remove_our_keys(redis)


def remove_our_keys(server: RedisServer) -> None:
    """Leave somebody else's Redis as it was."""
    from redis import Redis

    with Redis.from_url(server.url) as client:
        for key in client.scan_iter(match=f"{server.key_prefix}*", count=1000):
            client.delete(key)


def as_interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
