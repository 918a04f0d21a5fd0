"""What the world guarantees: object store, broker, registry, warehouse, extraction engine, clock.

A port promises guarantees, not just methods. `kbq_assets_tests/contracts/` judges every adapter and every fake by
the same suite.
"""
