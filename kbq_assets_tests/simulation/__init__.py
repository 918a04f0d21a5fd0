"""A seeded simulator that drives the real pipelines over the faulty fakes.

scheduler    processes as greenlets: every remote call is a switch point, where the call may fail or the process die
world        the fakes joined: store, broker, registry, warehouse, and the processes that work on them
promises     what must hold after every schedule (PROTOCOL, Promises)

    python -m kbq_assets_tests.simulation --schedules 100000       a long run
    python -m kbq_assets_tests.simulation --seed 4711 --trace      one schedule, every step printed
"""
