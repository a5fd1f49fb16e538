"""The control plane under load and failures: ``python -m benchmarks.control``.

One core has the controllers and redis-server, the other the load generator: a fleet of simulated
agents, each the product's own uplink and arbiter over a fake engine, with a connection of its own.

certificates   of controllers, agents and the operator
agents         the simulated agents
operator       admin calls and the watch that sees their acknowledgements
generator      the load generator's process; told what to do by lines of JSON
stage          the processes of a run: redis-server, controllers, generator, on their cores
load failover store_chaos partitions fuzz   what is measured
"""
