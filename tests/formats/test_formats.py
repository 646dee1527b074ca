"""What earlier versions have written is read as they meant it, and this version writes the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.formats import forms, golden
from tests.formats.examples import examples

NEWEST = golden.versions()[-1]
CHANGED = "a format has changed: say so in docs/explanation/formats.md, and write new golden files"


@pytest.mark.parametrize(("name", "what", "text", "read"), [*golden.texts()])
def test_what_a_version_has_written_is_read(name: str, what: str, text: str, read: Any) -> None:
    assert json.loads(json.dumps(forms.READERS[name](text))) == read, what


@pytest.mark.parametrize("name", forms.READERS)
def test_this_version_writes_what_the_newest_golden_files_have(name: str) -> None:
    golden_texts = {what: each["written"] for what, each in golden.of(NEWEST, name).items()}
    assert examples()[name] == golden_texts, CHANGED


def test_keys_and_the_names_of_notes_are_as_before() -> None:
    # Given the keys of the first version: another key is another lock
    first = golden.of(golden.versions()[0], "keys")
    # I expect the same, and others at most beside them
    assert forms.keys() == {**forms.keys(), **first}


def test_an_older_version_can_insert_into_a_table_that_was_migrated() -> None:
    """It leaves out the columns that it does not know."""
    first, *later = forms.columns().values()
    assert first == golden.of(golden.versions()[0], "columns")["0001_initial"]
    for columns in later:
        assert set(first) <= set(columns)
        assert all(each in first or each.endswith("may be left out") for each in columns)


def test_a_text_with_a_field_more_is_read_as_without_it() -> None:
    """A later version may write it. Reservations and follow-ups are compared whole: they never get
    one."""
    for name, what, text, read in golden.texts():
        for more in _with_more(name, text):
            assert json.loads(json.dumps(forms.READERS[name](more))) == read, (name, what, more)


def _with_more(name: str, text: str) -> list[str]:
    match name:
        case "lease" | "waiter" if text.endswith("}"):
            return [f'{text[:-1]},"region":"eu"}}']
        case "event" | "header":
            return [json.dumps({"region": {"name": "eu"}, **json.loads(text)})]
        case "run" | "turn":
            return [f"{text} eu"]
        case "burst":
            return [json.dumps([*json.loads(text), "eu"])]
    return []
