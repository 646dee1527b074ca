"""The keys of every script are among its KEYS: some servers run no other scripts."""

from __future__ import annotations

import re
from pathlib import Path

import django_tasklock.stores

SCRIPTS = sorted(Path(django_tasklock.stores.__file__).parent.glob("lua/*.lua"))
WITHOUT_KEYS = {"TIME", "PUBLISH", "PUBSUB", "INFO"}
KEY = r"KEYS|key|keys|index|listed|fences|queue|queues|note|index_of_it|change"
CALL = re.compile(r"redis\.p?call\('([A-Z]+)',?\s*(?:unpack\()?(\w*)")
SET = re.compile(rf"^ *(?:local )?(?:\w+, )*(?:{KEY})\b(?:, \w+)* = (.*)$", re.MULTILINE)


def test_no_script_makes_a_key() -> None:
    assert SCRIPTS
    for script in SCRIPTS:
        text = re.sub("--.*", "", script.read_text())
        for command, key in CALL.findall(text):
            assert command in WITHOUT_KEYS or re.fullmatch(KEY, key), (script, command, key)
        for value in SET.findall(text):
            assert ".." not in value, (script, value)
