"""Copies of the package as a later version may be: its formats have a field more, or are others.

A deploy runs such a copy beside this version. What a later version may change, and what becomes of
that here, is in ``docs/explanation/formats.md``.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from example_project.processes import PROJECT

Patches = dict[str, list[tuple[str, str]]]

FIELDS: Patches = {
    "_values/owner.py": [
        (
            "record = {**this_process(), **more,",
            'record = {"region": "eu", **this_process(), **more,',
        ),
        ("{HELD_BY: by, REASON: reason}", '{HELD_BY: by, REASON: reason, "region": "eu"}'),
    ],
    "_values/tokens.py": [("(self.name), self.limit]", '(self.name), self.limit, "eu"]')],
    "stores/event_text.py": [('{"kind": event.kind,', '{"region": "eu", "kind": event.kind,')],
    "celery/call.py": [('{"sent": time.time()}', '{"sent": time.time(), "region": "eu"}')],
    "celery/note.py": [
        ("{process_words()}", "{process_words()} eu"),
        ('f"s{starts} {by or self.token}"', 'f"s{starts} {by or self.token} eu"'),
        ("return Note(self.key, WENT_ON,", 'return Note(self.key, f"{WENT_ON} eu",'),
    ],
    "celery/debounce.py": [("json.dumps(after)", 'json.dumps([*after, "eu"])')],
    "celery/requeue.py": [("{need!r} {message.id}", "{need!r} {message.id} eu")],
}
"""What each format has more: the rule allows it, and older versions go by what they know."""

OTHERS: Patches = {
    "_values/owner.py": [
        ("record = {**this_process(), **more,", 'record = {"format": 2, **this_process(), **more,'),
        ("{HELD_BY: by, REASON: reason}", '{HELD_BY: by, REASON: reason, "format": 2}'),
    ],
    "_values/lock_info.py": [('"adopted", "held"\n', '"adopted", "held", "seen"\n')],
    "_values/tokens.py": [
        ('f"{VERSION}.{', 'f"2.{'),
        ("if version != VERSION and", 'if version not in ("1", "2") and'),
        ("version == VERSION\n", 'version in ("1", "2")\n'),
    ],
    "stores/records.py": [("FORMAT in read:", "read.get(FORMAT, 2) != 2:")],
    "stores/event_text.py": [
        ('"kind": event.kind,', '"kind": "seen" if event.kind == "waited" else event.kind,'),
    ],
    "celery/note.py": [
        ('"s": ("started", 1)}', '"s": ("started", 1), "E": ("ended", 3), "S": ("started", 1)}'),
        ("|[es](", "|[esES]("),
        ('f"e{self.counted} ', 'f"E{self.counted} '),
        ('f"s{starts} ', 'f"S{starts} '),
    ],
}
"""What is written in other forms, which older versions do not know."""


def newer_copy(folder: Path, patches: Patches = FIELDS) -> Path:
    """Put a copy into a folder, and return what is first in the PYTHONPATH of its processes."""
    copied = folder / "django_tasklock"
    shutil.copytree(
        PROJECT / "django_tasklock", copied, ignore=shutil.ignore_patterns("__pycache__")
    )
    for name, changes in patches.items():
        text = (copied / name).read_text()
        for old, new in changes:
            assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
            text = text.replace(old, new)
        (copied / name).write_text(text)
    # ``python -m`` looks into the current folder first: the project's, with this version.
    (folder / "sitecustomize.py").write_text(FINDER)
    return folder


FINDER = """
import sys
from importlib.machinery import PathFinder
from pathlib import Path


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        here = [str(Path(__file__).parent)]
        return PathFinder.find_spec(name, here) if name == "django_tasklock" else None


sys.meta_path.insert(0, Finder)
"""
"""What Python imports before anything else, if it is in the PYTHONPATH."""
