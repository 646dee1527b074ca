"""
Locks, and their recovery, beside the tools that people use with Celery and Django.

Each test shows both: that a killed job runs again and is done once, and that the other tool does
its own work. The stage is that of the hard cases; `recovers` is what all of them do.
"""
