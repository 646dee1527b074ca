"""Every string of the pages is translated, and what is compiled is what is written."""

from __future__ import annotations

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.utils.translation.template import templatize

import django_tasklock

PACKAGE = Path(django_tasklock.__file__).parent
CATALOG = PACKAGE / "locale" / "zh_Hans" / "LC_MESSAGES"
COUNTS = dict.fromkeys(("gettext", "gettext_lazy", "_", "gettext_noop"), 1)
COUNTS |= dict.fromkeys(("ngettext", "ngettext_lazy"), 2)
TEXT = r"""u?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""


def strings_of(code: str) -> Iterator[tuple[str, ...]]:
    """The messages that Python code asks for: one string, or a singular and a plural."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            texts = node.args[: COUNTS.get(ast.unparse(node.func), 0)]
            # An attribute may be one of several texts, each marked by gettext_noop elsewhere.
            if texts and not isinstance(texts[0], ast.Attribute):
                yield tuple(ast.literal_eval(each) for each in texts)


def messages() -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for path in PACKAGE.rglob("*.py"):
        found.update(strings_of(path.read_text()))
    for path in PACKAGE.rglob("*.html"):
        # What makemessages reads: the template with all but its messages blanked out.
        code = templatize(path.read_text())
        for call in re.findall(rf"(?:\b_|\bn?gettext)\(\s*{TEXT}(?:\s*,\s*{TEXT})?", code):
            found.update(strings_of(f"{call})" if "ngettext" not in call else f"{call}, 1)"))
    return found


def catalog() -> dict[Any, str]:
    with (CATALOG / "django.mo").open("rb") as file:
        return gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined,no-any-return]


def fields(text: str) -> set[str]:
    return {*re.findall(r"%\(\w+\)[sd]|\{\w*\}", text)}


def test_every_string_is_translated_and_what_is_compiled_is_what_is_written() -> None:
    # Given what the code and the templates say to people
    known, found = catalog(), messages()

    # I expect each message to be there in Chinese, with the same values to be filled in
    assert len(found) > 70
    for message in found:
        translated = known.get(message[0] if len(message) == 1 else (message[0], 0))
        assert translated, f"{message} is not translated"
        assert fields(translated) <= set().union(*map(fields, message)), message
        if len(message) == 1:
            assert fields(translated) == fields(message[0]), message
        assert not {*translated} & {*"鎖務儲過"}, "characters of the other script"

    # And what is compiled to be what is written
    text = (CATALOG / "django.po").read_text()
    assert "fuzzy" not in text
    written = dict(
        re.findall(r'^msgid "(.+)"\n(?:msgid_plural .+\n)?msgstr(?:\[0\])? "(.*)"', text, re.M)
    )
    compiled = {key if isinstance(key, str) else key[0]: text for key, text in known.items()}
    compiled.pop("")
    assert compiled == written
