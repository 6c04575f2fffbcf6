"""The embedded stack: a real Temporal server, a real PostgreSQL and workers, as children of one process.

    stack.py            composition: `async with Stack(...)`, and `wipe`
    state.py            the state directory, its lock, `stack.json`, `find_running`
    children.py         starts, restarts and stops the child processes; leash.py ties each to its parent
    temporal_server.py  the Temporal dev server as a program
    postgres.py         PostgreSQL as a program; placement.py says where its files are, and which account runs it
    redis.py            Redis as a program
    rabbitmq.py         RabbitMQ as a program, installed if it is missing and can be
    programs.py         the workers, the console and the bridges as programs
    ports.py            which port a server gets

Import from the modules: this package imports nothing, so that a command that only looks for a running stack is quick.
"""
