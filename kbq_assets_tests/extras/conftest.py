"""`kbq` over a platform of fakes, as for the commands outside of extras."""

from kbq_assets_tests.cli.conftest import loaded, run, unchanged, world

__all__ = ["loaded", "run", "unchanged", "world"]
