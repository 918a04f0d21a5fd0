"""`kbq` over a platform of fakes, as for the commands of the spine."""

from kbq_assets_tests.cli.conftest import run, unchanged, world

__all__ = ["run", "unchanged", "world"]
