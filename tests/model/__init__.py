"""
A small model of the scripts and of those who call them, in which every state is visited.

What is modelled, and what is not, is said for readers in docs/explanation/model.md.

* `messages`: what the server keeps, what it is sent and what it says.
* `server`: the scripts about one lock, as functions from one state of the server to the next.
* `state`, `locks`: processes that take the lock, wait, hold, release, die, and get no reply.
* `surroundings`: deaths, leases that run out, operators, commands that come late.
* `truth`: what must hold in every state. It knows more than any process does.
* `canonical`: states that differ in numbers alone are one.
* `search`: visits every state, the nearest first, and says the shortest way to a bad one in words.
* `faults`: the same with a fault, which must be found.
* `rows`, `reservations`: two more models, of a guarded row and of uniqueness in the queue.
* `walk`, `real_server`: random walks that the scripts on a real Redis take beside the model.
"""
