"""Short examples, one file for each use of a lock: on top what a site would have, below it a
demonstration by real processes, which ``make demo`` runs after the videos.

    make demo ARGS=--examples                  all of them, without the videos
    make demo ARGS='--examples stampede'       one

Each file has ``show(crew)``, which returns a `Shown`. To add an example, add its file and its name
here.
"""

USES = [
    "stampede", "reentrancy", "seats", "exports", "catalog", "answers", "payment", "leader",
]  # fmt: skip
"""modules of this package, in the order in which they are shown"""
