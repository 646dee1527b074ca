"""The tables of the docs have what the code has, and nothing else."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.core.management import load_command_class
from django.dispatch import Signal

from django_tasklock import (
    AcquireAllOptions,
    AcquireOptions,
    LockContext,
    LockOptions,
    LockService,
    conf,
    exceptions,
    signals,
)
from django_tasklock import checks as system_checks
from django_tasklock.stores.base import BaseStore
from django_tasklock.stores.cache import CacheStore
from django_tasklock.stores.cluster import RedisClusterStore
from django_tasklock.stores.contract import Contract
from django_tasklock.stores.database import DatabaseStore
from django_tasklock.stores.memory import MemoryStore
from django_tasklock.stores.quorum import QuorumStore
from django_tasklock.stores.redis import RedisStore
from django_tasklock.stores.zookeeper import ZooKeeperStore
from tests import inside
from tests.docs import every_file, task_options
from tests.pages import DOCS, code, section, table

STORES = (RedisStore, RedisClusterStore, CacheStore, DatabaseStore, ZooKeeperStore, QuorumStore,
          MemoryStore)  # fmt: skip
FLAGS = [name for name, kind in Contract.__annotations__.items() if "bool" in kind]
OPTIONS_OF = {
    "acquire": AcquireOptions.__annotations__, "acquire_all": AcquireAllOptions.__annotations__,
}  # fmt: skip
API = DOCS / "reference/api.md"
CHECKS = DOCS / "reference/checks.md"
COMMAND = DOCS / "reference/command.md"
METRICS = DOCS / "operations/metrics.md"
SETTINGS = DOCS / "reference/settings.md"
SIGNALS = DOCS / "reference/signals.md"
TROUBLE = DOCS / "troubleshooting.md"

# ------------------------------------------------------------------------------ what a page shows


def named(*where: Any) -> set[str]:
    """The first name of each row."""
    return {code(row[0])[0] for row in table(*where)}


def columns(*where: Any) -> dict[str, tuple[str, ...]]:
    """The first name of each row, with those of the second column."""
    return {code(row[0])[0]: tuple(code(row[1])) for row in table(*where)}


def defaults(*where: Any) -> dict[str, Any]:
    """The same with a value; an empty cell is no default."""
    return {
        name: ast.literal_eval(value[0]) if value else inspect.Parameter.empty
        for name, value in columns(*where).items()
    }


def shown_options() -> dict[str, set[str]]:
    shown: dict[str, set[str]] = {store.__name__: set() for store in STORES}
    whose: list[str] = []
    for stores, options, *_ in table(SETTINGS, "Options", "Store"):
        if stores:  # An empty cell stands for the one above.
            whose = list(shown) if stores == "all" else code(stores)
        for name in whose:
            shown[name] |= set(code(options))
    return shown


# ------------------------------------------------------------------------------ what the code has


def parameters(function: Callable[..., Any]) -> dict[str, Any]:
    found = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in found if each.name not in ("self", "args")}


def store_settings() -> dict[str, Any]:
    return {
        field.name.upper(): {} if field.default is MISSING else field.default
        for field in fields(conf.StoreSettings)
        if field.name.upper() in conf.KEYS
    }


def errors() -> dict[str, tuple[str, ...]]:
    # By class: an old name is exported beside the new one.
    own = {getattr(exceptions, name) for name in exceptions.__all__}
    return {
        error.__name__: ()
        if error.__init__ is Exception.__init__
        else tuple(name for name in parameters(error) if name != "kwargs")
        for error in own
    }


def verbs() -> set[str]:
    """The calls of `LockService`, as they are written, but for those of leases and tasks."""
    internal = {"adopt_again", "try_adopt", "try_hold"}
    calls, usual = set(), inside.usual_options()
    for name, function in inspect.getmembers(LockService, inspect.isfunction):
        awaited = inspect.iscoroutinefunction(function)  # howto/async.md has these
        if not (name.startswith("_") or awaited or name in internal):
            found = list(inspect.signature(function).parameters.values())[1:]
            plain = [
                each.replace(annotation=each.empty) for each in found if each.name != "options"
            ]
            plain += [
                inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=usual[option])
                for option in OPTIONS_OF.get(name, [])
            ]
            calls.add(f"locks.{name}{inspect.Signature(plain)}")
    return calls


def options_of_lock() -> dict[str, Any]:
    """Those of a checker are those of the call."""
    context, usual = parameters(LockContext), inside.usual_options() | {"renew": True}
    found = {name: context[name] for name in ("name", "on_conflict")} | usual
    assert found.keys() == LockOptions.__annotations__.keys() | {"name", "on_conflict"}
    return found


@cache
def nodes(path: Path = every_file.PACKAGE) -> list[ast.AST]:
    """All there is in a file, or in those of a folder."""
    if path.is_dir():
        return [node for each in sorted(path.rglob("*.py")) for node in nodes(each)]
    return list(ast.walk(ast.parse(path.read_text("utf-8"))))


def calls(path: Path = every_file.PACKAGE) -> list[ast.Call]:
    return [node for node in nodes(path) if isinstance(node, ast.Call)]


def text_of(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def checks() -> set[str]:
    findings = [call for call in calls() if ast.unparse(call.func) == "Finding" and call.args]
    # The admin's class of that name begins with another field.
    ids = [text_of(finding.args[0]) for finding in findings]
    texts = [text_of(node) for node in nodes() if isinstance(node, ast.expr)]
    ids += [each for each in texts if re.fullmatch(r"[EWI]\d{3}", each or "")]
    return {f"django_tasklock.{each}" for each in ids if each}


def gauges() -> set[str]:
    pytest.importorskip("prometheus_client")
    return {gauge.name for gauge in inside.LockCollector().describe()}


def with_gaps(text: str) -> str:
    return text.replace("%s[%s]", "…").replace("%s", "…")


def log_lines() -> dict[str, str]:
    found = {}
    for call in calls():
        logger, _, level = ast.unparse(call.func).rpartition(".")
        if logger == "logger" and level in ("info", "warning", "error", "exception"):
            text = text_of(call.args[0])
            assert text is not None, ast.unparse(call)
            found[with_gaps(text)] = level.upper().replace("EXCEPTION", "ERROR")
    logs = nodes(every_file.PACKAGE / "operators/logs.py")
    for function in [node for node in logs if isinstance(node, ast.FunctionDef)]:
        inner = list(ast.walk(function))
        texts = [node.value for node in inner if isinstance(node, ast.Assign)
                 and ast.unparse(node.targets[0]) == "text"]  # fmt: skip
        for call in [node for node in inner if isinstance(node, ast.Call)]:
            if texts and ast.unparse(call.func) == "_log":
                line = with_gaps(text_of(texts[0]) or "")
                found[line] = ast.unparse(call.args[0]).removeprefix("logging.")
    # The page says more of one: by whom a lock was cleared, if that is known.
    found["lock … in store …, held by …, was cleared by …"] = found.pop(
        "lock … in store …, held by …, was cleared…"
    )
    return found


def metrics() -> dict[str, tuple[str, ...]]:
    return {f"tasklock_{each.name}_total": each.labels for each in inside.COUNTERS} | {
        f"tasklock_{each.name}_seconds": each.labels for each in inside.HISTOGRAMS
    }


def command_verbs() -> dict[str, argparse.ArgumentParser]:
    parser = load_command_class("django_tasklock", "locks").create_parser("manage.py", "locks")
    (verbs,) = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    return dict(verbs.choices)


TABLES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "lock": (lambda: defaults(API, "lock", "Parameter"), options_of_lock),
    "locks": (lambda: named(API, "locks", "Call"), verbs),
    "errors": (lambda: columns(API, "Errors", "Error"), errors),
    "settings": (lambda: defaults(SETTINGS, "Keys", "Key"), store_settings),
    "options of stores": (
        shown_options,
        lambda: {each.__name__: BaseStore.known_options | each.known_options for each in STORES},
    ),
    "stores": (
        lambda: {code(row[0])[0]: row[1:] for row in table(SETTINGS, "Stores", "")[1:]},
        lambda: {
            flag: ["yes" if getattr(store, flag) else "no" for store in STORES] for flag in FLAGS
        },
    ),
    "signals": (
        lambda: named(SIGNALS, "Signals", "Signal"),
        lambda: {name for name in signals.__all__ if isinstance(getattr(signals, name), Signal)},
    ),
    "outcomes": (
        lambda: columns(SIGNALS, "Calls that did not run", "Outcome"),
        lambda: signals.OUTCOMES,
    ),
    "checks": (
        lambda: named(CHECKS, "Settings and tasks", "Id") | named(CHECKS, "The live server", "Id"),
        checks,
    ),
    "problems": (
        lambda: named(TROUBLE, "What the doctor finds", "Problem"),
        lambda: set(inside.PROBLEMS),
    ),
    "log lines": (
        lambda: {code(row[0])[0]: row[1] for row in table(TROUBLE, "Log lines", "Line")},
        log_lines,
    ),
    "metrics": (lambda: columns(METRICS, "What is counted", "Metric"), metrics),
    "gauges": (lambda: named(METRICS, "The state of the locks", "Metric"), gauges),
    "verbs": (
        lambda: {name.split()[0] for name in named(COMMAND, "Verbs", "Verb")},
        lambda: set(command_verbs()),
    ),
}


@pytest.mark.parametrize("made", [every_file, task_options])
def test_what_is_made_of_the_code_is_as_it_would_be_made_now(made: ModuleType) -> None:
    # Given a page, or a docstring, that a program makes
    for path, text in made.FILES.items():
        # I expect the file to have what the program makes of the code today
        assert path.read_text("utf-8") == text(), f"run python -m {made.__name__}"

    # And no option of a task to be without its comment, of whose form the program is
    assert tuple(option.name for option in task_options.options()) == inside.OPTIONS


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_what_the_code_has(name: str) -> None:
    shown, actual = TABLES[name]
    assert shown() == actual()


def test_a_file_says_in_a_sentence_what_is_in_it() -> None:
    silent = [
        path
        for path in every_file.PACKAGE.rglob("*.py")
        if path.read_text("utf-8") and not every_file.first_sentence(path).endswith((".", "?"))
    ]
    assert silent == []


def test_the_texts_of_what_stores_find_are_the_codes() -> None:
    """A store says it of itself; the check begins with the store's alias."""
    texts = {
        "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        if isinstance(node, ast.JoinedStr)
        else text_of(node) or ""
        for path in (every_file.PACKAGE / "stores", Path(system_checks.__file__))
        for node in nodes(path)
        if isinstance(node, ast.JoinedStr | ast.Constant)
    }
    known = [re.escape(each).replace("…", ".*") for each in texts if len(each.strip("…: .")) > 9]
    for identity, shown, *_ in table(CHECKS, "The live server", "Id"):
        text = code(shown)[0].removesuffix(".")
        assert any(re.fullmatch(f"(?:…: )?{each}", text) for each in known), identity


def test_each_option_of_the_command_is_shown_and_each_that_is_shown_exists() -> None:
    text = section(COMMAND, "Verbs")
    rows = {code(row[0])[0].split()[0]: " ".join(row) for row in table(COMMAND, "Verbs", "Verb")}
    for verb, parser in command_verbs().items():
        options = [action for action in parser._actions if action.option_strings]
        public = {each.option_strings[0] for each in options if each.help != argparse.SUPPRESS}
        assert {name for name in public if name.startswith("--") and name not in text} == set()
        known = {name for each in options for name in each.option_strings}
        assert set(re.findall(r"--\w[\w-]*", rows[verb])) <= known, verb
