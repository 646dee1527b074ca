"""The message headers and call options that belong to this package. They are a wire format."""

from __future__ import annotations

__all__ = [
    "ANYWAY",
    "BESIDE",
    "BROKERS_OWN",
    "DELIVERY_COUNT",
    "FIRST",
    "HEADER",
    "LEASE",
    "MOMENT",
    "REFUSED",
    "UNIQUE_FOR",
]

HEADER = "tasklock"
"""the message header with what a message must keep when it is requeued"""

FIRST = "first"
"""in `HEADER`, of a retry: when the first try was sent, in seconds since the epoch"""

BESIDE = "beside"
"""in `HEADER`, of a retry that was sent with ``throw=False``, or by hand: the run that sent it has
gone on"""

MOMENT = "moment"
"""in `HEADER`: the moment of a debounced call, in nanoseconds since the epoch"""

REFUSED = "refused"
"""in `HEADER`: when this try of the message was first refused by a holder of the lock, in seconds
since the epoch, and the number of its retries. An outage that requeues the message removes it"""

ANYWAY = "tasklock_anyway"
"""the option of a call whose message is sent whatever is in the queue, and reserves nothing. It is
an option because a mixin may send later: mixins pass options on, but no context variables"""

LEASE = "lease"
"""the option of a call whose run goes on under the caller's lease, and the key of the handle in
`HEADER`"""

UNIQUE_FOR = "tasklock_unique_for"
"""the message header with a call's own ``unique_for``: retries and requeued messages reserve for
the same time"""

DELIVERY_COUNT = "x-delivery-count"
"""the header in which a quorum queue of RabbitMQ counts how often it has delivered this message
before. With ``x-delivery-limit`` it drops the message that was delivered too often"""

BROKERS_OWN = frozenset(
    {DELIVERY_COUNT, "x-acquired-count", "x-death"}
    | {
        f"x-{which}-death-{of}"
        for which in ("first", "last")
        for of in ("exchange", "queue", "reason")
    }
)
"""the headers that RabbitMQ adds. A message that is sent anew must not have them: it would count as
delivered, and RabbitMQ drops a message that seems to go round between two queues"""
