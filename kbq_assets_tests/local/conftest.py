"""`kbq` over a platform of fakes, as for the commands outside of local."""

from kbq_assets_tests.cli.conftest import run, unchanged, world

__all__ = ["run", "unchanged", "world"]
