"""The embedded stack: a real Temporal server, a real PostgreSQL and workers, as children of one process.

    stack.py            composition: `async with Stack(...)`, and `wipe`
    state.py            the state directory, its lock, `stack.json`, `find_running`
    supervisor.py       starts, restarts and stops the children; child.py is one of them, leash.py ties it to its parent
    temporal_server.py  the Temporal dev server as a program
    postgres.py         PostgreSQL as a program; placement.py says where its files are, account.py who runs it
    redis.py            Redis as a program
    rabbitmq.py         RabbitMQ as a program, installed if it is missing and can be
    workers.py          the worker processes as programs; brokers.py has the bridges
    ports.py            which port a server gets

Import from the modules: this package imports nothing, so that a command that only looks for a running stack is quick.
"""
