"""An order is charged once, however often the button is clicked."""

from __future__ import annotations

import time
import uuid
from decimal import Decimal

from django.db import transaction

from django_tasklock import lock
from example_project.videos import ledger
from example_project.videos.models import Order, Payment


def pay(order_id: int) -> Payment | None:
    """Charge the order, unless that was done before.

    Returns:
        The payment, or None if the order had been paid already.

    Raises:
        LockNotAcquired: other clicks on this order kept the lock for more than ten seconds.
        StoreUnavailable, LeaseLost: Redis could not be asked, at the beginning or only at the end,
            when the order may be paid: look at its row.
    """
    # Not inside a transaction: the next click must see the row as this one leaves it.
    with lock(f"order:{order_id}", ttl=30, wait=10) as lease:
        order = Order.objects.get(pk=order_id)
        if order.status == Order.Status.PAID:
            return None
        lease.assert_held()
        reference = charge_card(order.amount, idempotency_key=f"order-{order.pk}")
        with transaction.atomic():
            Order.objects.filter(pk=order.pk).update(status=Order.Status.PAID)
            payment: Payment = Payment.objects.create(
                order=order, reference=reference, amount=order.amount
            )
    return payment


def charge_card(amount: Decimal, *, idempotency_key: str) -> str:
    """Pretend to be a payment gateway: slow, and it takes money each time it is called.

    A real gateway refuses an `idempotency_key` that it has seen, which covers the one case that no
    lock can: killed after the charge and before the row. This one only writes it down, so that
    what the lock alone achieves can be counted.
    """
    time.sleep(0.3)
    reference = uuid.uuid4().hex
    ledger.append("charges", key=idempotency_key, amount=str(amount), reference=reference)
    return reference
