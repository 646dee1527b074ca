"""A primary with replicas, and Sentinels that watch over them."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from tests.servers import RedisServer, find_binary, free_port, own_redis, start_process
from tests.tls import Tls
from tests.waiting import until

DOWN_AFTER_MS = 1000
"""a server that does not answer for so long is down; a replica whose link to the primary has been
down for ten times as long is not promoted"""
START_SECONDS = 30.0


@dataclass
class Member:
    """One server of the group."""

    server: RedisServer
    port: int
    """the one for clients, replicas and Sentinels: that of TLS, if there is TLS"""
    user: str = field(default_factory=lambda: f"replica-{secrets.token_hex(4)}")
    """as whom it replicates from any other"""
    password: str | None = None

    @property
    def redis(self) -> Any:
        """An operator's connection."""
        return redis.Redis("127.0.0.1", self.server.port, password=self.password)

    @property
    def role(self) -> str:
        try:
            return str(self.redis.role()[0].decode())
        except redis.RedisError:
            return "silent"

    def is_in_step(self) -> bool:
        """Whether it is a replica with everything that its primary has sent."""
        return bool(self.redis.info("replication").get("master_link_status") == "up")


class ReplicatedRedis:
    """A primary and its replicas. A test may pause and kill each, and cut a replica off."""

    def __init__(self, members: Sequence[Member], replica_password: str) -> None:
        self.members = list(members)
        self._replica_password = replica_password

    @classmethod
    @contextlib.contextmanager
    def own(
        cls, replicas: int, *, tls: Tls | None = None, password: str | None = None
    ) -> Iterator[ReplicatedRedis]:
        """Raises NoRedis if there is no redis-server, or none that can do TLS where that is asked
        for."""
        with contextlib.ExitStack() as stack:
            members = []
            for _ in range(replicas + 1):
                # A replica writes what it is sent to a file, which another server must not load.
                folder, port = stack.enter_context(tempfile.TemporaryDirectory()), free_port()
                options = ["--dir", folder, "--repl-diskless-sync-delay", "0"]
                if tls is not None:
                    options += ["--tls-port", str(port)]
                    for key, value in tls.directives().items():
                        options += [f"--{key}", value]
                server = stack.enter_context(own_redis(needs_own=True, options=options))
                members.append(Member(server, port if tls else server.port))
            group = cls(members, secrets.token_hex(8))
            group._connect(password)
            yield group

    def _connect(self, password: str | None) -> None:
        primary = self.members[0]
        for member in self.members:
            for each in self.members:
                member.redis.acl_setuser(
                    each.user, enabled=True, passwords=[f"+{self._replica_password}"],
                    commands=["+psync", "+replconf", "+ping"],
                )  # fmt: skip
            member.redis.config_set("masteruser", member.user)
            member.redis.config_set("masterauth", self._replica_password)
            if password is not None:
                member.redis.config_set("requirepass", password)
                member.password = password
        for member in self.members[1:]:
            member.redis.replicaof("127.0.0.1", primary.port)
        until(lambda: all(member.is_in_step() for member in self.members[1:]), within=START_SECONDS)

    @property
    def primary(self) -> Member:
        """The member that is the primary now; waits until there is one."""
        return until(
            lambda: next((member for member in self.members if member.role == "master"), None),
            "a primary",
            within=START_SECONDS,
        )  # type: ignore[return-value]

    @property
    def replicas(self) -> list[Member]:
        primary = self.primary
        return [member for member in self.members if member is not primary]

    def cut_off(self, replica: Member) -> None:
        """Nothing of the primary's reaches the replica from now on, not even what is on its way.

        A replica that is merely paused reads what has arrived meanwhile when it goes on.
        """
        primary = self.primary.redis
        primary.acl_setuser(replica.user, enabled=False)
        primary.execute_command("CLIENT", "KILL", "USER", replica.user)
        until(lambda: not replica.is_in_step())

    def let_in(self, replica: Member) -> None:
        """Undo `cut_off`."""
        self.primary.redis.acl_setuser(replica.user, enabled=True)
        until(replica.is_in_step, within=START_SECONDS)


@contextlib.contextmanager
def sentinels(
    group: ReplicatedRedis, folder: Path, *, tls: Tls | None = None, password: str | None = None,
    own_password: str | None = None,
) -> Iterator[tuple[str, list[tuple[str, int]]]]:  # fmt: skip
    """Three Sentinels that know each other and the group: its name, and their addresses.

    ``password`` is that of the servers, ``own_password`` that of the Sentinels.
    """
    name = f"locks-{secrets.token_hex(4)}"  # django-redis keeps a pool for each name.
    ports = [free_port() for _ in range(3)]
    given = {"ssl": True, **tls.client()} if tls is not None else {}
    with contextlib.ExitStack() as stack:
        for port in ports:
            lines = [
                "bind 127.0.0.1", f"dir {folder}", "protected-mode no",
                *([f"port {port}"] if tls is None else ["port 0", f"tls-port {port}"]),
                *(f"{key} {value}" for key, value in (tls.directives() if tls else {}).items()),
                f"sentinel monitor {name} 127.0.0.1 {group.primary.port} 2",
                f"sentinel down-after-milliseconds {name} {DOWN_AFTER_MS}",
                f"sentinel failover-timeout {name} 6000",
                *([f"sentinel auth-pass {name} {password}"] if password else []),
                *([f"requirepass {own_password}"] if own_password else []),
            ]  # fmt: skip
            config = folder / f"sentinel-{port}.conf"
            config.write_text("\n".join(lines) + "\n")
            output = stack.enter_context(tempfile.TemporaryFile())
            process = start_process([str(find_binary()), str(config), "--sentinel"], output)
            stack.callback(process.wait)
            stack.callback(process.kill)

        def ready(port: int) -> bool:
            one: Any = redis.Redis("127.0.0.1", port, password=own_password, **given)
            try:
                seen = one.sentinel_master(name)
            except redis.RedisError:
                return False
            finally:
                one.close()
            others = len(group.members) - 1
            return (int(seen["num-other-sentinels"]), int(seen["num-slaves"])) == (2, others)

        until(lambda: all(map(ready, ports)), "the Sentinels", within=START_SECONDS, every=0.1)
        yield name, [("127.0.0.1", port) for port in ports]
