"""The keys of every script are among its KEYS: some servers run no other scripts."""

from __future__ import annotations

import re
from pathlib import Path

import django_tasklock.stores
from django_tasklock.stores.redis.leases import ACQUIRE

SCRIPTS = sorted(Path(django_tasklock.stores.__file__).parent.glob("lua/*.lua"))
WITHOUT_KEYS = {"TIME", "PUBLISH", "PUBSUB", "INFO"}
KEY = r"KEYS|key|keys|index|fences|queue|queues|note|gate"
CALL = re.compile(r"redis\.p?call\('([A-Z]+)',?\s*(?:unpack\()?(\w*)")
SET = re.compile(rf"^ *(?:local )?(?:\w+, )*(?:{KEY})\b(?:, \w+)* = (.*)$", re.MULTILINE)


def test_no_script_makes_a_key() -> None:
    assert SCRIPTS
    for script in SCRIPTS:
        text = re.sub("--.*", "", script.read_text())
        for command, key in CALL.findall(text):
            assert command in WITHOUT_KEYS or re.fullmatch(KEY, key), (script, command, key)
        for value in SET.findall(text):
            assert "KEYS" in value or "{}" in value, (script, value)
            assert ".." not in value, (script, value)


def test_a_cluster_runs_the_same_scripts() -> None:
    sharded = ACQUIRE.sharded
    assert sharded.text == ACQUIRE.text.replace(b"'NUMSUB'", b"'SHARDNUMSUB'").replace(
        b"'PUBLISH'", b"'SPUBLISH'"
    )
    assert ACQUIRE.notifies
    assert sharded.notifies
