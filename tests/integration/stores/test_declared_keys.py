"""The keys of every script are among its KEYS: some servers run no other scripts."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import django_tasklock.stores
from django_tasklock import StoreUnavailable
from django_tasklock.stores import stores
from django_tasklock.stores.base import BaseStore
from django_tasklock.stores.redis import RedisStore
from django_tasklock.stores.redis.leases import ACQUIRE
from django_tasklock.stores.redis.script import Script
from django_tasklock.testing import StoreContract
from tests.conftest import UseCaches, UseRedis
from tests.store_cases import CLUSTER_CASE, StoreCase, redis_cache

STRICT = """
local declared = {}
for _, key in ipairs(KEYS) do declared[key] = true end
local function check(...)
  -- The server itself says which of a command's arguments are keys.
  local keys = redis.pcall('COMMAND', 'GETKEYS', ...)
  for _, key in ipairs(keys.err and {} or keys) do
    if not declared[key] then error('undeclared key: ' .. key) end
  end
end
local plain = redis
local redis = setmetatable({
  call = function(...) check(...) return plain.call(...) end,
  pcall = function(...) check(...) return plain.pcall(...) end,
}, {__index = plain})
"""
"""put before a script, it makes commands fail on keys that are not among KEYS"""

SCRIPTS = {path.stem for path in Path(django_tasklock.stores.__file__).parent.glob("lua/*.lua")}
PARTS = {
    "add_to_index", "describe_locks", "draw_fence", "hand_over", "head_of", "join_queue",
    "length_of", "memory", "next_fence", "notify_waiters", "value_of_lock",
}  # fmt: skip
"""what is included by scripts"""


def all_scripts() -> dict[str, Script]:
    """Each script of the package that its modules have made."""
    found = [each for each in gc.get_objects() if type(each) is Script]
    texts = {name: Script(name).sha for name in SCRIPTS - PARTS}
    return {name: each for each in found for name, sha in texts.items() if each.sha == sha}


@pytest.fixture(scope="module", autouse=True)
def strict_scripts() -> Iterator[None]:
    made = all_scripts()
    assert made.keys() == SCRIPTS - PARTS
    before = {name: each.text.decode() for name, each in made.items()}
    for each in made.values():
        each._set(STRICT + each.text.decode())
        vars(each).pop("sharded", None)
    yield
    for name, each in made.items():
        each._set(before[name])
        vars(each).pop("sharded", None)


@pytest.fixture(
    params=[StoreCase("redis", lambda request: redis_cache(_url(request))), CLUSTER_CASE],
    ids=lambda case: case.id,
)
def strict_store(request: pytest.FixtureRequest, use_caches: UseCaches) -> BaseStore:
    case: StoreCase = request.param
    made = case.tasklock
    tasklock = made(request) if callable(made) else made
    use_caches({"default": case.cache(request)}, {"default": tasklock})
    return stores["default"]


def _url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("redis_server").url
    return url


class TestStrictly(StoreContract):
    @pytest.fixture(autouse=True)
    def _strictly(self, strict_store: BaseStore) -> None:
        self.store = strict_store

    def make_store(self) -> BaseStore:
        return self.store


def test_it_is_strict(use_redis: UseRedis) -> None:
    use_redis()
    store = stores["default"]
    assert isinstance(store, RedisStore)
    assert store.client.ask("GET", [b"video:1"]) is None
    with pytest.raises(StoreUnavailable, match="undeclared key: video:1"):
        store.client.ask("GET", [], b"video:1")


def test_the_cluster_runs_the_same_scripts() -> None:
    sharded = ACQUIRE.sharded
    assert sharded.text == ACQUIRE.text.replace(b"'NUMSUB'", b"'SHARDNUMSUB'").replace(
        b"'PUBLISH'", b"'SPUBLISH'"
    )
    assert ACQUIRE.notifies
    assert sharded.notifies
