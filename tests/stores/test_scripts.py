"""The scripts do on a real Redis what the model in tests/nightly/model says of them; their keys are
among their KEYS, as some servers run no other scripts."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
import redis

import django_tasklock.stores
from tests.conftest import UseRedis
from tests.nightly.model.walk import walk
from tests.seeds import drawn_seed
from tests.servers import RedisServer

STEPS = 30
BY_DAY = 40
"""walks, the same each day; at night others are drawn"""


@pytest.mark.parametrize("walks", [BY_DAY, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_scripts_take_the_steps_of_the_model(
    walks: int, own_redis_server: RedisServer, use_redis: UseRedis
) -> None:
    """``SEED=…`` takes the same walks of a night again."""
    # Given a Redis, and walks through the states of a lock
    use_redis(own_redis_server.url)
    client = redis.Redis.from_url(own_redis_server.url)
    seed = 1 if walks == BY_DAY else drawn_seed()

    # I expect each step of a script to lead to the state that the model says
    for at in range(walks):
        walk(f"walk:{at}", Random(f"{seed}-{at}"), STEPS, client)
    client.close()


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
