"""What KBQ requires of the world: object store, broker, registry, warehouse, extraction engine, clock.

A port promises guarantees, not just methods. `kbq_assets_tests/contracts/` tests every adapter and every fake with
the same suite.
"""
