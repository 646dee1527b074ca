"""Certificates for the servers of tests."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.servers import NoRedis

__all__ = ["Tls"]


@dataclass
class Tls:
    """A certificate for 127.0.0.1, which is its own authority."""

    certificate: Path
    key: Path

    @classmethod
    def made_in(cls, folder: Path) -> Tls:
        made = cls(folder / "tls.crt", folder / "tls.key")
        subprocess.run(
            [
                "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                "-subj", "/CN=locks", "-addext", "subjectAltName=IP:127.0.0.1",
                "-keyout", str(made.key), "-out", str(made.certificate),
            ],
            check=True,
            capture_output=True,
        )  # fmt: skip
        return made

    @classmethod
    @contextlib.contextmanager
    def needed(cls, folder: Path) -> Iterator[Tls]:
        """One for the servers that the block starts; skips the test if they cannot have TLS."""
        if shutil.which("openssl") is None:
            needs.missing("openssl is not installed")
        try:
            yield cls.made_in(folder)
        except NoRedis as error:
            if "tls" in str(error).lower():
                pytest.skip("this redis-server was built without TLS")
            needs.missing(str(error))

    def directives(self) -> dict[str, str]:
        """Of redis.conf: servers and Sentinels speak TLS with each other as well."""
        return {
            "tls-cert-file": str(self.certificate),
            "tls-key-file": str(self.key),
            "tls-ca-cert-file": str(self.certificate),
            "tls-auth-clients": "no",
            "tls-replication": "yes",
        }

    def client(self) -> dict[str, Any]:
        """redis-py's arguments."""
        return {"ssl_ca_certs": str(self.certificate)}
