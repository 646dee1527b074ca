"""The payment button of the example site, when Redis goes away under it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.agent import run_python
from tests.servers import RedisServer

PROGRAM = """
import json, os, signal, sys
from django.contrib.messages import get_messages
from django.core.management import call_command
from django.test import Client
from example_project.videos import ledger, payments
from example_project.videos.models import Order

moment, redis = sys.argv[1], int(sys.argv[2])
os.makedirs(os.environ["EXAMPLE_STATE"], exist_ok=True)
call_command("migrate", verbosity=0)
order = Order.objects.create(title="a film", amount=5)
if moment == "before":
    os.kill(redis, signal.SIGKILL)
else:
    charge = payments.charge_card
    def charge_and_cut(*args, **kwargs):
        reference = charge(*args, **kwargs)
        os.kill(redis, signal.SIGKILL)
        return reference
    payments.charge_card = charge_and_cut
answer = Client(SERVER_NAME="localhost").post(f"/orders/{order.pk}/pay/")
order.refresh_from_db()
said = [str(message) for message in get_messages(answer.wsgi_request)]
print(json.dumps([answer.status_code, order.status, len(ledger.read("charges")), said]))
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_it_says_what_is_known_of_the_charge(
    own_redis_server: RedisServer, tmp_path: Path, moment: str
) -> None:
    printed = run_python(
        PROGRAM,
        moment,
        str(own_redis_server.pid),
        DJANGO_SETTINGS_MODULE="example_project.settings",
        EXAMPLE_REDIS_URL=own_redis_server.url,
        EXAMPLE_STATE=str(tmp_path / "state"),
    )
    status, order, charges, (said,) = json.loads(printed.splitlines()[-1])
    assert status == 302
    if moment == "before":
        assert (order, charges) == ("open", 0)
        assert "not known" in said
    else:
        assert (order, charges) == ("paid", 1)
        assert "is paid" in said
