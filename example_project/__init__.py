"""A small video site: the kind of project django-tasklock is for.

    make demo     the whole job, counted, in a minute or two
    make serve    the site itself, with the admin, on localhost

Start reading at ``videos/tasks.py``; ``uses/`` has a short file for each other use of a lock.
"""
