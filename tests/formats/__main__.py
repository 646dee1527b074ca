"""Writes the golden files of this version, which must not have any yet: once, before a release that
changes a format."""

from __future__ import annotations

import json
import sys

import django

from django_tasklock import __version__
from tests.formats.golden import FOLDER


def main() -> int:
    django.setup()
    from tests.formats import forms
    from tests.formats.examples import examples

    folder = FOLDER / __version__
    if folder.exists():
        print(f"{folder} is there: what a version has written does not change")
        return 1
    folder.mkdir()
    written: dict[str, object] = {
        name: {
            what: {"written": text, "read": forms.READERS[name](text)}
            for what, text in texts.items()
        }
        for name, texts in examples().items()
    }
    for name, content in {**written, "keys": forms.keys(), "columns": forms.columns()}.items():
        text = json.dumps(content, indent=1, ensure_ascii=True)
        (folder / f"{name}.json").write_text(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
