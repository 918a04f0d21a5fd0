"""A fork server on a host with too many processes: its first fork fails."""

from __future__ import annotations

import errno
import os

from kbq_assets_tests.adapters.process_pool import serving

MODULE = "kbq_assets_tests.adapters.process_pool.crowded"


def load() -> None:
    fork = os.fork

    def refuse() -> int:
        os.fork = fork
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    os.fork = refuse


if __name__ == "__main__":
    serving.main(load)
