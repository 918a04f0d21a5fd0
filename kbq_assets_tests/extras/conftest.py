"""`kbq` over a platform of fakes, as for the commands outside of extras."""

from kbq_assets_tests.cli.conftest import run, unchanged, world

__all__ = ["run", "unchanged", "world"]
