"""A fork server whose workers die at their start."""

from __future__ import annotations

import os

from kbq_assets_tests.adapters.process_pool import serving

MODULE = "kbq_assets_tests.adapters.process_pool.dying"


def load() -> None:
    os.register_at_fork(after_in_child=lambda: os._exit(9))


if __name__ == "__main__":
    serving.main(load)
