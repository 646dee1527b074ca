"""What each store needs to be measured: its servers, and the settings of a site that uses it. Those
in a database are in `benchmarks.database_servers`.

Each function here is a context manager that yields a `Site`, and raises `NotHere` if this machine
lacks something. It is given a folder for files, which goes away with the run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from example_project.redis_binary import NoRedis, find_binary
from example_project.servers import RedisServer, free_port, start_process

__all__ = ["STORES", "NotHere", "Serve", "Site", "redis_server"]

STORES = "django_tasklock.stores"
START_SECONDS = 30.0


class NotHere(Exception):
    """The store cannot be measured here; the message says what is missing."""


@dataclass
class Site:
    """More of the settings TASKLOCK, CACHES and DATABASES, each by alias.

    ``store`` is the alias of the store to be measured, ``about`` what its server is.
    """

    store: str
    tasklock: dict[str, dict[str, Any]]
    caches: dict[str, dict[str, Any]] = field(default_factory=dict)
    databases: dict[str, dict[str, Any]] = field(default_factory=dict)
    about: str = ""


Serve = Callable[[Path], AbstractContextManager[Site]]


@contextlib.contextmanager
def memory(_folder: Path) -> Iterator[Site]:
    yield Site("memory", {"memory": {"BACKEND": f"{STORES}.memory.MemoryStore"}})


@contextlib.contextmanager
def locmem(_folder: Path) -> Iterator[Site]:
    caches = {"locmem": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    yield Site("locmem", {"locmem": {"CACHE": "locmem"}}, caches)


@contextlib.contextmanager
def redis_of_the_run(_folder: Path) -> Iterator[Site]:
    yield Site("default", {})


@contextlib.contextmanager
def redis_cluster(folder: Path) -> Iterator[Site]:
    """Three primaries without replicas."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                redis_server(
                    "--cluster-enabled", "yes", "--cluster-config-file", str(folder / name)
                )
            )
            for name in ("one.conf", "two.conf", "three.conf")
        ]
        nodes: list[Any] = [redis.Redis(port=server.port) for server in servers]
        for number, node in enumerate(nodes):
            slots = range(16384 * number // 3, 16384 * (number + 1) // 3)
            node.execute_command("CLUSTER", "ADDSLOTS", *slots)
            node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.execute_command("CLUSTER", "MEET", "127.0.0.1", servers[0].port)
        _until(lambda: all(map(_has_a_whole_cluster, nodes)))
        location = [f"redis://127.0.0.1:{server.port}" for server in servers]
        store = {
            "BACKEND": f"{STORES}.cluster.RedisClusterStore",
            "OPTIONS": {"LOCATION": location},
        }
        yield Site("cluster", {"cluster": store}, about="a cluster of three Redis")


@contextlib.contextmanager
def quorum(_folder: Path) -> Iterator[Site]:
    """Three servers, each behind a cache and a store of its own."""
    with ExitStack() as stack:
        caches: dict[str, dict[str, Any]] = {}
        tasklock: dict[str, dict[str, Any]] = {}
        for number in range(3):
            alias = f"quorum-{number + 1}"
            url = stack.enter_context(redis_server()).url
            caches[alias] = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
            tasklock[alias] = {"CACHE": alias}
        # Servers that have just been started would not count for five minutes.
        options = {"STORES": list(tasklock), "LONGEST_TTL": None}
        tasklock["quorum"] = {"BACKEND": f"{STORES}.quorum.QuorumStore", "OPTIONS": options}
        yield Site("quorum", tasklock, caches, about="a quorum of three Redis")


@contextlib.contextmanager
def zookeeper(folder: Path) -> Iterator[Site]:
    """``BENCHMARK_ZOOKEEPER``'s hosts, or a single server that is started."""
    with ExitStack() as stack:
        hosts = os.environ.get("BENCHMARK_ZOOKEEPER")
        hosts = hosts or f"127.0.0.1:{stack.enter_context(_zookeeper(folder))}"
        store = {"BACKEND": f"{STORES}.zookeeper.ZooKeeperStore", "OPTIONS": {"HOSTS": hosts}}
        yield Site("zookeeper", {"zookeeper": store}, about="a single ZooKeeper, forceSync yes")


@contextlib.contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    while True:
        try:
            server = RedisServer.start(find_binary(), options)
            break
        except NoRedis as error:
            # A cluster's second port is 10,000 above the first one.
            if "too high" not in str(error):
                raise
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def _zookeeper(folder: Path) -> Iterator[int]:
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/share/zookeeper/bin"])
    script, port = shutil.which("zkServer.sh", path=path), free_port()
    if script is None:
        raise NotHere("no ZooKeeper is installed (or set BENCHMARK_ZOOKEEPER)")
    home = folder / "zookeeper"
    home.mkdir()
    config = home / "zoo.cfg"
    config.write_text(
        f"dataDir={home}\nclientPort={port}\nclientPortAddress=127.0.0.1\ntickTime=2000\n"
        "admin.enableServer=false\nmaxClientCnxns=0\n"
    )
    os.environ["ZOO_LOG_DIR"] = str(home)
    with tempfile.TemporaryFile() as output:
        process = start_process([script, "start-foreground", str(config)], output)
        try:
            _until(lambda: _listens(port))
            yield port
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _has_a_whole_cluster(node: Any) -> bool:
    said = str(node.execute_command("CLUSTER", "INFO"))
    return "cluster_state:ok" in said and "cluster_known_nodes:3" in said


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not what():
        if time.monotonic() > deadline:
            raise NotHere(f"a server did not answer within {START_SECONDS:.0f} s")
        time.sleep(0.05)
