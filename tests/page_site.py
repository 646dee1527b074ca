"""A site in which the code of a page runs: what is around each block, and a process for all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tests.pages import ROOT, blocks
from tests.servers import RedisServer

RUNNER = """
import ast, json, sys
import django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
namespace = {"__name__": "pages"}
for where, line, source in json.load(sys.stdin):
    tree = ast.parse("\\n" * (line - 1) + source, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, where, "exec"), namespace)
    if last is not None:
        namespace["_"] = eval(compile(ast.Expression(last.value), where, "eval"), namespace)
"""

APPLY = """
from django.test.utils import override_settings
override_settings(
    **{name: value for name, value in globals().items() if name in ("CACHES", "TASKLOCK")}
).enable()
"""


@dataclass(frozen=True)
class Around:
    """What a reader of the block called ``label`` has, and what must be so after it."""

    label: str
    before: str = ""
    after: str = ""


def module(path: str, *names: str) -> str:
    """Source that makes names of the blocks before importable from the module of one of them."""
    package = path.partition(".")[0]
    return f"""
import sys, types
made = types.ModuleType({path!r})
made.__dict__.update({{name: globals()[name] for name in {names!r}}})
sys.modules |= {{{package!r}: types.ModuleType({package!r}), {path!r}: made}}
"""


class Site:
    """The example site, with a Redis and a database of its own."""

    def __init__(self, server: RedisServer, state: Path) -> None:
        self.server = server
        self._environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "example_project.settings",
            "EXAMPLE_STATE": str(state),
            "EXAMPLE_REDIS_URL": server.url,
            "EXAMPLE_REDIS_PREFIX": "example",
        }

    def run(self, *steps: tuple[str, int, str]) -> str:
        """Run sources, each with its file and line, in one process and one namespace.

        Returns what they printed.
        """
        done = subprocess.run(
            [sys.executable, "-c", RUNNER],
            input=json.dumps(steps),
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run_page(
        self, page: Path, around: list[Around], leave_out: Collection[str] = frozenset()
    ) -> None:
        """Run all Python blocks of a page but those with these labels, with what is around them."""
        found = [each for each in blocks(page, "python") if each.label not in leave_out]
        assert [block.label for block in found] == [each.label for each in around]
        steps = []
        for block, each in zip(found, around, strict=True):
            text = block.text.replace("redis://127.0.0.1:6379/1", self.server.url)
            text = text.replace("time.sleep(20)", "work(video_id)")
            steps += [
                (f"before {block.label}", 1, each.before),
                (block.page, block.line, text),
                (f"after {block.label}", 1, each.after),
            ]
        self.run(*steps)
