"""The external systems that KBQ needs: object store, broker, registry, warehouse, extraction engine, clock.

A port promises guarantees, not just methods. For each port, one suite in `kbq_assets_tests/contracts/` tests every
adapter and every fake.
"""
