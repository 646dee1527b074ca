"""A RabbitMQ of one's own: what it was given is there after a kill, and it leaves no process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from kombu import Connection, Queue

from tests import needs
from tests.processes import lives
from tests.rabbitmq import RabbitMQ
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_confirmed_message_outlives_the_kill_of_its_server(tmp_path: Path) -> None:
    needs.own_rabbitmq()
    me = psutil.Process()
    others = set(me.children(recursive=True))
    with RabbitMQ.own(tmp_path / "node") as node:
        processes = set(me.children(recursive=True))
        queue = Queue("jobs", durable=True)
        confirmed = {"confirm_publish": True}
        with Connection(node.url, transport_options=confirmed) as connection:
            producer: Any = connection.Producer()
            producer.publish({"job": 1}, routing_key="jobs", declare=[queue], delivery_mode=2)
        node.kill()
        assert not node.serves
        node.start()
        assert node.wait()
        assert b"jobs\t1" in node.ctl("list_queues", "name", "messages")
        processes |= set(me.children(recursive=True))
    until(lambda: not any(map(lives, processes - others)), "that all are ended")
