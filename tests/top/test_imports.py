"""Tests import what the docs name, and helpers that have homes of their own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PUBLIC = re.compile(
    r"django_tasklock(\.(celery|guards|views|leader|caching|tasks|testing(\.\w+)?|conf|checks"
    r"|signals|exceptions|models|apps|pytest_plugin|admin|contrib(\.(prometheus|opentelemetry))?"
    r"|stores(\.(base|contract|records|redis|memory|cache|cluster|quorum|zookeeper|database"
    r"))?))?"
)
# They are about what is inside: values that need no store, and what we use of other packages.
EXEMPT = re.compile(
    r"tests/(inside|compat/\w+|top/test_values|engine/test_names"
    r"|formats/(forms|examples)|stores/test_decoding|celery_tasks/test_bursts)\.py"
)


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports: those of names that are modules as well."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            inside = ROOT / node.module.replace(".", "/")
            names = {each.name for each in node.names}
            yield from (f"{node.module}.{x.stem}" for x in inside.glob("*") if x.stem in names)


def test_only_inside_imports_inner_modules_and_no_test_imports_a_test() -> None:
    # Given every file of the tests, and what it imports
    wrong: dict[str, set[str]] = {}
    for path in ROOT.glob("tests/**/*.py"):
        name = path.relative_to(ROOT).as_posix()
        for module in imported(path):
            inner = module.startswith("django_tasklock") and not PUBLIC.fullmatch(module)
            # I expect no test among that, and nothing that only `tests.inside` knows
            a_test = re.match(r"tests\.(.*\.)?test_", module)
            if a_test or (inner and not EXEMPT.fullmatch(name)):
                wrong.setdefault(name, set()).add(module)
    assert wrong == {}
