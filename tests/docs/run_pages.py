"""Run the Python blocks of pages: ``python -m tests.docs.run_pages PAGE...``.

A block is a module, called by the file in its first line. Its settings are applied, its functions
are called, and its test cases run. What it neither defines nor imports is the reader's, and
`readers.py` has that. What a page shows at the prompt of ``manage.py shell`` is what one sees.
Each page has a process, forked from this one, which prints as JSON what went wrong on which page.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import inspect
import io
import json
import logging.config
import os
import re
import symtable
import sys
import traceback
import types
import unittest
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import django
import redis
from django.conf import settings
from django.core.cache import caches
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connections
from django.test import RequestFactory
from django.test.utils import override_settings

from django_tasklock.stores import stores
from django_tasklock.testing import locks_in_memory
from tests.docs.readers import AFTER, BEFORE, LEFT_OUT, READERS
from tests.pages import ROOT, Block, blocks


def foreign_names(block: Block) -> set[str]:
    """The names that a block reads and gives no value, but for Python's own."""
    scopes = [whole := symtable.symtable(block.text, block.page, "exec")]
    for scope in scopes:
        scopes += scope.get_children()
    names = [name for scope in scopes for name in scope.get_symbols()]
    read = {name.get_name() for name in names if name.is_global() and name.is_referenced()}
    own = {n.get_name() for n in whole.get_symbols() if n.is_assigned() or n.is_imported()}
    return read - own - set(dir(builtins))


def register(name: str, module: Any) -> None:
    """Make a module one that can be imported, with the packages that it is in."""
    for at, letter in enumerate(name):
        if letter == ".":
            sys.modules.setdefault(name[:at], ModuleType(name[:at]))
    sys.modules[name] = module


def loaded(block: Block, given: dict[str, Any]) -> ModuleType:
    """The block as a module."""
    file = re.match(r"# (?:after: )?([\w/]+)\.py$", block.label)
    module = ModuleType(file[1].replace("/", ".") if file else f"line_{block.line}")
    vars(module).update({name: given[name] for name in foreign_names(block) if name in given})
    register(module.__name__, module)
    text = re.sub(r"time\.sleep\(\d+\)", "time.sleep(0)", block.text)
    text = text.replace("redis://127.0.0.1:6379/1", os.environ.get("EXAMPLE_REDIS_URL", ""))
    tree = ast.parse("\n" * (block.line - 1) + text)
    exec(compile(tree, str(ROOT / block.page), "exec"), vars(module))
    return module


def apply_settings(module: ModuleType) -> None:
    """Each store of these settings is made, which looks at its options."""
    values = {name: value for name, value in vars(module).items() if name.isupper()}
    if "LOGGING" in values:
        logging.config.dictConfig(values["LOGGING"])
    if "INSTALLED_APPS" in values:
        own = [app for app in values["INSTALLED_APPS"] if app not in settings.INSTALLED_APPS]
        values["INSTALLED_APPS"] = [*settings.INSTALLED_APPS, *own]
    if "DATABASES" in values:
        connections.settings |= connections.configure_settings(values.pop("DATABASES"))
    override_settings(**values).enable()
    for alias in values.get("TASKLOCK", ()):
        assert stores[alias].alias == alias


def call_functions(block: Block, module: ModuleType, post: Any) -> None:
    """Call each function by the names of its parameters, each time for a row of its own."""
    for node in ast.parse(block.text).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        required = node.args.args[: len(node.args.args) - len(node.args.defaults)]
        names = [each.arg for each in required if each.arg != "self"]
        if any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list):
            continue
        function: Callable[..., Any] = getattr(module, node.name)
        with locks_in_memory() if "tasklock" in names else MagicMock() as tasklock:
            known = arguments(post, tasklock)
            result = getattr(function, "call", function)(*(known[name] for name in names))
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        assert getattr(result, "status_code", 200) < 300, (node.name, result)
        assert not isinstance(result, dict) or "status" not in result, (node.name, result)


def try_at_the_prompt(block: Block) -> None:
    """Each line prints what its comment says, on django-redis and on Django's own cache for it."""
    expected = re.findall(r"^print\(.*\)  # (.+)$", block.text, re.MULTILINE)
    for backend in ("django_redis.cache", "django.core.cache.backends.redis"):
        cache = settings.CACHES["default"] | {"BACKEND": f"{backend}.RedisCache", "OPTIONS": {}}
        printed = io.StringIO()
        with override_settings(CACHES={"default": cache}), contextlib.redirect_stdout(printed):
            exec(block.text, {})
            caches["default"].delete("proof")
        assert printed.getvalue().splitlines() == expected, backend


def arguments(post: Any, tasklock: Any) -> dict[str, Any]:
    from example_project.videos.models import Video

    lease = SimpleNamespace(fence=1, held=True)
    return {
        "account": 7, "amount": 100, "count": 1, "date": "2026-11-20", "day": "monday",
        "holder": SimpleNamespace(owner=SimpleNamespace(task="accounts.closing.close")),
        "lease": lease, "name": "order:7", "order_id": 7, "outcome": "requeued", "page": 1,
        "parts": [1, 2], "path": "a.m3u8", "product_id": 7, "reason": "outage", "request": post,
        "seats": [3, 4], "shop_id": 7, "source": 1, "target": 2,
        "task": SimpleNamespace(lease=lease), "tasklock": tasklock, "tenant_id": "large",
        "template": "order:{order_id}", "user_id": 7, "version": 1,
        "video_id": Video.objects.create(title="a clip").pk, "waited": 0,
    }  # fmt: skip


def run_page(page: str) -> None:
    """Raises what goes wrong."""
    from example_project.videos import models

    for name in ("videos.models", "reports.models"):
        register(name, models)
    post = RequestFactory().post("/")
    post.user = Mock(pk=3, is_authenticated=True)
    helpers = {name: Mock(return_value=value) for name, value in READERS.items()}
    given = helpers | {
        "BASE_DIR": Path(os.environ["EXAMPLE_STATE"]),
        "DATABASES": dict(settings.DATABASES),
        "order_id": 7,
    }
    names: dict[str, Any] = {"sys": sys, "types": types, "MagicMock": MagicMock}
    exec(BEFORE.get(page, ""), names)
    used: set[str] = set()
    for block in blocks(ROOT / page, "python"):
        if block.label in LEFT_OUT:
            continue
        if block.label == "# manage.py shell":
            try_at_the_prompt(block)
            continue
        module = loaded(block, given)
        used |= foreign_names(block) & set(helpers)
        if "settings" in block.label:
            apply_settings(module)
        call_functions(block, module, post)
        for value in vars(module).values():
            its_own = getattr(value, "__module__", "") == module.__name__
            if its_own and isinstance(value, type) and issubclass(value, unittest.TestCase):
                tests = unittest.defaultTestLoader.loadTestsFromTestCase(value)
                assert unittest.TextTestRunner().run(tests).wasSuccessful()
        names |= vars(module)
    exec(AFTER.get(page, ""), names | {"Video": models.Video, "post": post})
    idle = [name for name in used if not helpers[name].called]
    assert idle == [], f"the code that calls {idle} was not reached"
    assert [error for error in run_checks() if error.is_serious()] == []


def forked(page: str) -> str:
    """What goes wrong on a page, or an empty text."""
    reader, writer = os.pipe()
    if child := os.fork():
        os.close(writer)
        with open(reader) as said:
            text = said.read()
        _, status = os.waitpid(child, 0)
        return f"{text}\nits process ended with {status}" if status else ""
    try:
        run_page(page)
        os._exit(0)
    except BaseException:
        os.write(writer, traceback.format_exc().encode())
        os._exit(1)


def main() -> None:
    django.setup()
    call_command("migrate", verbosity=0)
    connections.close_all()
    said = {}
    for page in sys.argv[1:]:
        with redis.Redis.from_url(os.environ["EXAMPLE_REDIS_URL"]) as client:
            client.flushall()
        said[page] = forked(page)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
