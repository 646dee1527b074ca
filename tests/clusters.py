"""A Redis Cluster of real servers, which tests may grow, and whose nodes they may kill."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pytest
import redis

from example_project.redis_binary import version_of
from tests import needs
from tests.servers import NoRedis, RedisServer, find_binary, free_port, own_redis
from tests.tls import Tls
from tests.waiting import until

START_SECONDS = 60.0
SLOTS = 16384
PATIENT_MS = 30_000
"""the nodes' timeout in a cluster in which none is to fail, however busy the machine is"""
HASTY_MS = 1_500
"""the nodes' timeout in a cluster in which some are killed"""


def require_cluster_server() -> None:
    """Skip the test if there is no redis-server of which a cluster can be made here."""
    try:
        binary = find_binary()
    except NoRedis as error:
        needs.missing(str(error))
    version = version_of(binary)
    if version < (7, 0):
        # Also where CI is set: the oldest server that the other stores support is 6.2.
        pytest.skip(f"Redis {version}: a cluster of these tests needs 7.0 (its --cluster-port)")


@dataclass(eq=False)
class ClusterNode:
    """One server of a cluster."""

    server: RedisServer
    port: int
    """the one for clients: that of TLS, if there is TLS"""
    bus: int
    password: str | None = None

    def run(self, *command: Any) -> Any:
        """A command, with its reply as the server sends it."""
        connection: Any = redis.Connection
        made = connection(
            host="127.0.0.1", port=self.server.port, password=self.password, socket_timeout=20,
        )  # fmt: skip
        try:
            made.connect()
            made.send_command(*command)
            return made.read_response()
        finally:
            made.disconnect()

    @property
    def id(self) -> str:
        return str(self.run("CLUSTER", "MYID").decode())

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def info(self, section: str) -> dict[str, str]:
        lines = self.run("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def is_alive(self) -> bool:
        try:
            return bool(self.run("PING"))
        except (redis.RedisError, OSError):
            return False

    def role(self) -> str:
        try:
            return self.info("replication")["role"]
        except (redis.RedisError, OSError):
            return "silent"

    def knows(self) -> dict[str, str]:
        """The flags of each node that this one knows, by id."""
        lines = self.run("CLUSTER", "NODES").decode().splitlines()
        return {line.split()[0]: line.split()[2] for line in lines}

    def is_ok(self) -> bool:
        said = self.run("CLUSTER", "INFO").decode()
        return "cluster_state:ok" in said


@dataclass(eq=False)
class Cluster:
    """Masters that share the slots, and a replica for each."""

    _stack: contextlib.ExitStack
    timeout_ms: int = HASTY_MS
    tls: Tls | None = None
    password: str | None = None
    full_coverage: bool = True
    nodes: list[ClusterNode] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def own(cls, masters: int = 3, replicas: int = 3, **options: Any) -> Iterator[Cluster]:
        """A cluster for the time of the block, with the fields above; skips the test if there can
        be none."""
        require_cluster_server()
        with contextlib.ExitStack() as stack:
            cluster = cls(stack, **options)
            for _ in range(masters + replicas):
                cluster.start_node()
            cluster._connect(masters)
            yield cluster

    def start_node(self) -> ClusterNode:
        """A server that is ready to join."""
        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        bus, port = free_port(), free_port()
        options = [
            *("--cluster-enabled", "yes", "--cluster-port", str(bus), "--dir", folder),
            *("--cluster-node-timeout", str(self.timeout_ms), "--shutdown-timeout", "0"),
            *("--cluster-require-full-coverage", "yes" if self.full_coverage else "no"),
            *("--repl-diskless-sync-delay", "0", "--cluster-allow-replica-migration", "no"),
        ]
        if self.tls is not None:
            options += ["--tls-port", str(port), "--tls-cluster", "yes"]
            for name, value in self.tls.directives().items():
                options += [f"--{name}", value]
        server = self._stack.enter_context(own_redis(needs_own=True, options=options))
        # Killed, not ended: nothing is to be kept.
        self._stack.callback(lambda: server.kill() if server.pid else None)
        node = ClusterNode(server, port if self.tls else server.port, bus)
        if self.password is not None:
            node.run("CONFIG", "SET", "masterauth", self.password)
            node.run("CONFIG", "SET", "requirepass", self.password)
            node.password = self.password
        self.nodes.append(node)
        return node

    def _connect(self, masters: int) -> None:
        for number, node in enumerate(self.nodes):
            node.run("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < masters:
                first, end = (SLOTS * each // masters for each in (number, number + 1))
                node.run("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            for other in self.nodes[:number]:
                self.introduce(node, other)
        self.until_all_know()
        ids = [node.id for node in self.nodes[:masters]]
        for number, node in enumerate(self.nodes[masters:]):
            node.run("CLUSTER", "REPLICATE", ids[number % masters])
        until(self.is_whole, "a cluster", within=START_SECONDS, every=0.05)

    def introduce(self, node: ClusterNode, other: ClusterNode) -> None:
        node.run("CLUSTER", "MEET", "127.0.0.1", other.port, other.bus)

    def until_all_know(self) -> None:
        """Until every node knows all others, and what is in the cluster."""
        ids = {node.id for node in self.living}

        def known() -> bool:
            return all(
                {each for each, flags in node.knows().items() if "handshake" not in flags} >= ids
                for node in self.living
            )

        until(known, "acquaintance", within=START_SECONDS, every=0.05)

    def is_whole(self) -> bool:
        """Whether all nodes are ok, agree about the slots, and their replicas are in step."""
        if not all(node.is_alive() and node.is_ok() for node in self.nodes):
            return False
        seen = {str(sorted(self.slots(node).items())) for node in self.nodes}
        in_step = all(
            node.info("replication").get("master_link_status", "up") == "up" for node in self.nodes
        )
        counted = sum(node.role() == "slave" for node in self.nodes)
        linked = sum(int(node.info("replication")["connected_slaves"]) for node in self.nodes)
        return len(seen) == 1 and in_step and counted == linked

    # ------------------------------------------------------------------------ what is where

    @property
    def living(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.is_alive()]

    @property
    def masters(self) -> list[ClusterNode]:
        """The living masters that serve slots."""
        serving = set(self.slots().values())
        return [node for node in self.living if node.port in serving]

    def slots(self, said_by: ClusterNode | None = None) -> dict[tuple[int, int], int]:
        """The port of the master of each range of slots, as one node says."""
        said = (said_by or self.living[0]).run("CLUSTER", "SLOTS")
        return {(int(entry[0]), int(entry[1])): self._client_port(entry[2][1]) for entry in said}

    def master_of(self, slot: int, said_by: ClusterNode | None = None) -> ClusterNode:
        for (first, last), port in self.slots(said_by).items():
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise AssertionError(f"nobody serves {slot}")

    def replica_of(self, master: ClusterNode) -> ClusterNode:
        for node in self.living:
            info = node.info("replication")
            if info["role"] == "slave" and self._client_port(info["master_port"]) == master.port:
                return node
        raise AssertionError("it has no replica")

    def _client_port(self, port: Any) -> int:
        """The port of a node for clients: a question without TLS is answered with the other."""
        number = int(port)
        return next(
            (node.port for node in self.nodes if number in (node.port, node.server.port)), number
        )

    def settings(self, **options: Any) -> dict[str, Any]:
        """``TASKLOCK["default"]`` on this cluster."""
        scheme = "rediss" if self.tls else "redis"
        user = f":{quote(self.password, safe='')}@" if self.password else ""
        location = [f"{scheme}://{user}127.0.0.1:{node.port}" for node in self.nodes[:2]]
        given: dict[str, Any] = {"LOCATION": location}
        if self.tls is not None:
            given["CONNECTION_POOL_KWARGS"] = self.tls.client()
        return {
            "BACKEND": "django_tasklock.stores.cluster.RedisClusterStore",
            "OPTIONS": given | options,
        }

    # ------------------------------------------------------------------------ what happens to it

    def begin_migration(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        target.run("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.run("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

    def migrate_keys(
        self, slot: int, source: ClusterNode, target: ClusterNode, most: int | None = None
    ) -> int:
        """Move keys of the slot, all of them or some. Returns how many."""
        moved = 0
        while most is None or moved < most:
            keys = source.run("CLUSTER", "GETKEYSINSLOT", slot, 1)
            if not keys:
                break
            auth = ["AUTH", self.password] if self.password else []
            try:
                source.run("MIGRATE", "127.0.0.1", target.server.port, "", 0, 5000, *auth,
                           "KEYS", *keys)  # fmt: skip
            except redis.ResponseError as error:
                # On a busy machine a node may miss the others for longer than its node timeout. The
                # key is still at the source, and an operator would go on as well.
                if "CLUSTERDOWN" not in str(error):
                    raise
                until(target.is_ok, "a node that sees the cluster", within=START_SECONDS)
                continue
            moved += len(keys)
        return moved

    def end_migration(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        new = target.id
        target.run("CLUSTER", "SETSLOT", slot, "NODE", new)
        source.run("CLUSTER", "SETSLOT", slot, "NODE", new)
        for node in self.masters:
            if node not in (source, target):
                node.run("CLUSTER", "SETSLOT", slot, "NODE", new)

    def move_slot(
        self, slot: int, target: ClusterNode, meanwhile: Callable[[], object] = tuple
    ) -> None:
        """Move a slot with its keys, as ``redis-cli --cluster reshard`` does."""
        source = self.master_of(slot, target)
        if source is target:
            return
        self.begin_migration(slot, source, target)
        self.migrate_keys(slot, source, target)
        meanwhile()
        # Somebody may have written meanwhile.
        self.migrate_keys(slot, source, target)
        self.end_migration(slot, source, target)

    def fail_over(self, master: ClusterNode) -> ClusterNode:
        """Kill a master, and wait until its replica serves its slots. Returns the new master."""
        replica = self.replica_of(master)
        master.server.kill()
        self.until_promoted(replica)
        return replica

    def until_promoted(self, replica: ClusterNode) -> None:
        until(
            lambda: replica.role() == "master" and all(node.is_ok() for node in self.living),
            "a failover",
            within=START_SECONDS,
            every=0.05,
        )
