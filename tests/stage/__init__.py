"""The stage of all tests with real workers, real signals and real brokers.

* fixtures   what tests ask for: stages, and the brokers and pools they are played with
* stage      one broker, one ledger, one database, and the workers of a test
* brokers    what is in the queues, and how to cut a broker off
* workers    ``celery worker`` and ``celery beat``: started, signalled, ended
* caller     a process that calls the tasks as a project's own code does
* app, settings, models, tasks  the project that the workers run
* scripted, early, declared     what its tasks do, how they end, how they are declared
* ledger     what their bodies did, written outside the database
"""
