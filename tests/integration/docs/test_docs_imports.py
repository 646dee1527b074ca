"""A block is a file: what another block of its page defines, it must import.

``test_docs_code.py`` runs all blocks of a page in one namespace, and does not see a missing import.
"""

from __future__ import annotations

import ast
import builtins
from pathlib import Path

import pytest

from tests.pages import PAGES, blocks, named


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_each_block_imports_what_another_one_defines(page: Path) -> None:
    found = [(block, ast.parse(block.text)) for block in blocks(page, "python")]
    for block, tree in found:
        others = {name for other, its in found if other is not block for name in bound(its)}
        missing = (loaded(tree) - bound(tree)) & others
        assert missing == set(), f"{block.page}:{block.line} {block.label}"


def loaded(tree: ast.AST) -> set[str]:
    """The names that the code reads, but for Python's own."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return names - set(dir(builtins))


def bound(tree: ast.AST) -> set[str]:
    """The names that the code gives a value, anywhere."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.arg():
                names.add(node.arg)
            case ast.alias():
                names.add((node.asname or node.name).partition(".")[0])
            case ast.ExceptHandler(name=str(name)):
                names.add(name)
    return names
