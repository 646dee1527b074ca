"""
A soak: the package at work on Redis for an hour, while it is disturbed and deployed.

``python -m tests.nightly.soak --minutes 60`` starts a Redis, two Celery workers, two sites, two
plain processes and a sender. It kills and stops some of them, makes outages, and puts the other
version of the package in the place of one. Afterwards the `rules` read the history that all wrote.

* conductor   starts everything, and ends it
* crew        who is in which place, in which version, and who has gone
* faults      what is done to the processes and the server; deploys
* programs    a process of one place, and how each kind is started
* database    the rows, and each change of their status
* book        where a process writes what happens
* tasks, site, player, sender   what the processes do
* figures     memory, descriptors, threads and keys, before and after
* rules       what must not have happened: those of `tests.nightly.chaos`, and more
"""

TTL_SECONDS = 2.0
"""of the leases of tasks and views; some bodies last longer"""
LONGEST_BODY_SECONDS = 3.0
LONGEST_OUTAGE_SECONDS = 8.0
VISIBILITY_SECONDS = 30.0
"""after which the Redis broker delivers a message again"""
PATIENCE_SECONDS = 75.0
"""after which the sender asks once more for a row that is not done"""
DRAIN_SECONDS = 180.0
"""at the end, in which all that was asked for is done"""
