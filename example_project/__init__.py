"""A small video site: the kind of project django-tasklock is for.

    make demo     the whole job, counted, in about a minute
    make serve    the site itself, with the admin, on localhost

Start reading at ``videos/tasks.py``.
"""
