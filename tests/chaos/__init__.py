"""
A run of the locks under faults, whose history is checked afterwards.

``python -m tests.chaos --seconds 60`` (or ``make chaos SECONDS=60``). A conductor (`run`) starts a
Redis, a proxy in front of it for each player process, and the players (`player`, `moves`), whose
threads take and give back a few locks through the public API; one process has a wall clock that
steps (`stepped_clock`). The conductor disturbs them and the server (`faults`, `server_faults`), and
looks at the locks meanwhile (`observer`). Everybody writes down what happened, by one clock
(`history`). When all are at rest the conductor writes down what is left (`aftermath`), and the
checker reads it all (`story`, `disturbance`) and says what must not have happened (`checker`, and a
module of `rules` for each kind of rule).
"""
