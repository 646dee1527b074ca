"""
Guarded tasks under load and faults, whose history is checked afterwards.

``python -m tests.chaos_tasks --tasks 10000 --broker redis`` (or ``make chaos-tasks TASKS=10000``).
A conductor (`run`) starts the servers (`servers`): a Redis or a RabbitMQ for the messages, a Redis
for the locks. It makes a database (`tables`) and real workers (`crew`, `app`, `tasks`), sends units
of work (`plan`, `sender`) and disturbs everything (`faults`). Everybody writes down what happened
(`tests.chaos.history`); a trigger of the database writes down each change of a row's status. When
all is at rest the checker reads it (`story`) and says what must not have happened (`checker`,
`rules`).

``python -m tests.churn --minutes 10`` is another run: many locks, many times, and nothing may grow.
"""
