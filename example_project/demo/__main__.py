from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from example_project.processes import until_interrupted
from example_project.servers import redis_of_the_site
from example_project.uses import USES

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

    def run() -> int:
        with place_of_our_own(options.store) as state:
            return demo(options, state)

    return until_interrupted(run, status=130)


def demo(options: argparse.Namespace, state: Path) -> int:
    # Only now, as Django and Celery read the environment that was made for them.
    import django
    from django.conf import settings
    from django.core.management import call_command

    django.setup()
    from example_project.demo.evidence import gather
    from example_project.demo.screen import Screen
    from example_project.demo.story import Story, show_uses

    for database in settings.DATABASES:
        call_command("migrate", database=database, verbosity=0)
    started = time.monotonic()
    screen = Screen(quiet_stdout=options.json)
    for line in ABOUT[options.store]:
        screen.say(line)
    evidence: dict[str, Any] = {"problems": []}
    if options.examples is None:
        story = Story(screen, state)
        story.play(options.videos, options.submissions)
        evidence = gather(story)
    examples = []
    if not options.videos_only:
        examples = show_uses(screen, state, options.examples or USES)
    evidence["examples"] = [dataclasses.asdict(example) for example in examples]
    problems: list[str] = evidence["problems"]
    problems += [f"{each.title}: {problem}" for each in examples for problem in each.problems]
    seconds = time.monotonic() - started
    if options.json:
        summary = {"ok": not problems, "seconds": round(seconds, 1), **evidence}
        print(json.dumps(summary if options.examples is None else evidence["examples"], indent=2))
    elif options.examples is None:
        screen.verdict(evidence, seconds)
    else:
        for problem in problems:
            print(f"WRONG: {problem}", file=sys.stderr)
    return 1 if problems else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m example_project.demo",
        description="Exit status 0: every video was transcoded exactly once. 1: it says what is "
        "wrong.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--store", choices=list(ABOUT), default="redis", help="where the locks are")
    add("--json", action="store_true", help="print the summary as JSON")
    add("--videos", type=int, default=8, metavar="N", help="how many")
    add(
        "--submissions", type=int, default=5, metavar="N",
        help="of each video at once, besides the late ones",
    )  # fmt: skip
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--videos-only", action="store_true", help="without the short examples")
    part.add_argument(
        "--examples", nargs="*", metavar="NAME", choices=USES,
        help="only the short examples of example_project/uses/: all, or those that are named",
    )  # fmt: skip
    return parser.parse_args()


@contextlib.contextmanager
def place_of_our_own(store: str) -> Iterator[Path]:
    """A directory and a Redis for this run only, told to the settings by the environment.

    With the store "database" there is no Redis.
    """
    with tempfile.TemporaryDirectory(prefix="tasklock-demo-") as folder:
        state = Path(folder)
        if store == "redis":
            with redis_of_the_site(state):
                yield state
        else:
            os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings_database"
            os.environ["EXAMPLE_STATE"] = folder
            yield state


if __name__ == "__main__":
    sys.exit(main())
