"""A fork server that loads nothing. Its argument is the descriptor of a socket."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable

from kbq_assets.adapters.process_pool.server import serve

MODULE = "kbq_assets_tests.adapters.process_pool.serving"


def main(load: Callable[[], None] = lambda: None) -> None:
    serve(socket.socket(fileno=int(sys.argv[1])), load)


if __name__ == "__main__":
    main()
