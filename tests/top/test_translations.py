"""Every string of the pages is translated, and what is compiled is what is written."""

from __future__ import annotations

import ast
import gettext
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.utils.translation.template import templatize

import django_tasklock

PACKAGE = Path(django_tasklock.__file__).parent
CATALOG = PACKAGE / "locale" / "zh_Hans" / "LC_MESSAGES"
CALLS = {"gettext", "gettext_lazy", "_", "gettext_noop"}
TEXT = r"""u?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
PLURAL_CALLS = {"ngettext", "ngettext_lazy"}
TRADITIONAL = "鎖務儲過"
"""characters of the other script"""


def strings_of(code: str) -> Iterator[tuple[str, ...]]:
    """The messages that Python code asks for: one string, or a singular and a plural."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            count = 1 if node.func.id in CALLS else 2 if node.func.id in PLURAL_CALLS else 0
            texts = [argument.value for argument in node.args[:count] if is_text(argument)]  # type: ignore[attr-defined]
            # An attribute may be one of several texts, each marked by gettext_noop elsewhere.
            marked = count and isinstance(node.args[0], ast.Attribute)
            assert marked or len(texts) == count, ast.unparse(node)
            if texts:
                yield tuple(texts)


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def messages() -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for path in PACKAGE.rglob("*.py"):
        found.update(strings_of(path.read_text()))
    for path in PACKAGE.rglob("*.html"):
        # What makemessages reads: the template with all but its messages blanked out.
        code = templatize(path.read_text())
        for one in re.findall(rf"(?:\b_|\bgettext)\(\s*({TEXT})\s*\)", code):
            found.add((ast.literal_eval(one),))
        for one, many in re.findall(rf"\bngettext\(\s*({TEXT})\s*,\s*({TEXT})", code):
            found.add((ast.literal_eval(one), ast.literal_eval(many)))
    return found


def catalog() -> dict[Any, str]:
    with (CATALOG / "django.mo").open("rb") as file:
        return gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined,no-any-return]


def fields(text: str) -> set[str]:
    return set(re.findall(r"%\(\w+\)[sd]", text)) | {
        name for _, name, _, _ in string.Formatter().parse(text) if name is not None
    }


def test_every_string_is_translated() -> None:
    known, found = catalog(), messages()
    assert len(found) > 70
    for message in found:
        key = message[0] if len(message) == 1 else (message[0], 0)
        assert known.get(key), f"{message} is not translated"
        translated = known[key]
        assert fields(translated) <= set().union(*map(fields, message)), message
        if len(message) == 1:
            assert fields(translated) == fields(message[0]), message
        assert not set(translated) & set(TRADITIONAL), translated


def test_what_is_compiled_is_what_is_written() -> None:
    text = (CATALOG / "django.po").read_text()
    assert "fuzzy" not in text
    written = dict(
        re.findall(r'^msgid "(.+)"\n(?:msgid_plural .+\n)?msgstr(?:\[0\])? "(.*)"', text, re.M)
    )
    compiled = {key if isinstance(key, str) else key[0]: text for key, text in catalog().items()}
    compiled.pop("")
    assert compiled == written
