"""A fork server that loads nothing: ``python -m kbq_assets_tests.adapters.process_pool.serving DESCRIPTOR``."""

from __future__ import annotations

import socket
import sys

from kbq_assets.adapters.process_pool.server import serve

MODULE = "kbq_assets_tests.adapters.process_pool.serving"

if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), lambda: None)
