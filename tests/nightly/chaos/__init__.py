"""
A run of the locks under faults, whose history is checked afterwards.

``python -m tests.nightly.chaos --seconds 60``. The `conductor` starts a Redis, and processes that
take and give back a few locks (`play`), each behind a proxy of its own. It stops and kills them,
cuts their connections, and pauses, restarts and empties the server. Everybody writes down what
happened, by one clock (`history`); at the end also what is left in Redis. Then it is put together
(`story`), and the command says which of the `rules` is broken. In which order waiters are served,
the model shows.
"""

NAMES = ("seat:1", "seat:2", "seat:3", "seat:4", "seat:5")
LONGEST_TTL_SECONDS = 6.0
LONGEST_WAIT_SECONDS = 12.0
"""of those waits that are not for ever"""
LATE_SECONDS = 5.0
"""beyond its own deadline, in which a call has to return; machines that run tests are busy"""
