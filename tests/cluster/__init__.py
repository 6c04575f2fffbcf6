"""Redrive on a real Temporal cluster: two server processes on one PostgreSQL, set up by the scripts in `deploy`.

    server_build.py  builds Temporal's server and SQL tool, of the compose file's version, from the Go module proxy
    network.py       an address for each node: network namespaces with links that can be cut, or loopback addresses
    database.py      PostgreSQL with the compose file's logins, its backups and restores
    balancer.py      one address in front of the nodes, as a load balancer gives it
    cluster.py       all of it together: `async with running_cluster(...)`
    fleet.py         workers, with the build that each of them runs
    edges.py         the console and both bridges, and what comes in by them
    modules.py       the pipelines of the chaos run; case.py counts what came of it

Stages, each a part of `python -m tests.cluster`: acceptance.py, chaos.py, versioning.py, restore.py,
retention.py, differences.py, throughput.py with costs.py.
"""
