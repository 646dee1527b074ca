"""The scripts do on a real Redis what the model in tests/nightly/model says of them."""

from __future__ import annotations

from random import Random

import pytest
import redis

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
    use_redis(own_redis_server.url)
    client = redis.Redis.from_url(own_redis_server.url)
    seed = 1 if walks == BY_DAY else drawn_seed()
    for at in range(walks):
        walk(f"walk:{at}", Random(f"{seed}-{at}"), STEPS, client)
    client.close()
