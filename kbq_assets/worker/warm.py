"""Compiling all kernels that workers run, in the install step: a first run need not wait for the compiler."""

from __future__ import annotations

from kbq_assets.adapters.kafka import native
from kbq_assets.wire import warm


def warm_up() -> None:
    """Compile, some 10 s, or load from the disk cache, .3 s."""
    warm.warm_up()
    native.warm_up()


if __name__ == "__main__":
    warm_up()
