"""
Many locks taken and given back for minutes: nothing may grow.

``python -m tests.churn --minutes 10`` (or ``make churn MINUTES=10``). Some processes (`player`)
take and release a thousand locks of a Redis of their own, in every way that leaves something
behind for a while. The conductor measures (`measures`) the memory of Redis, its connections, and
the threads, the open files and the log lines of the processes: at the start, at half of the time
and at the end.
"""
