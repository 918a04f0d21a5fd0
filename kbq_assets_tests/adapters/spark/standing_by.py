"""The program of Spark's daemon, with other code to load, and a daemon that only reports about itself.

It appends its process id to the file LOADED after loading, and then ends if DIES names it. The daemon prints a line of
JSON, and ends with its standard input.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyspark.daemon

from kbq_assets.adapters.spark.daemon import serve

MODULE = "kbq_assets_tests.adapters.spark.standing_by"
STANDBY, DAEMON = "standby", "daemon"


def load() -> None:
    """Note that this process loads. What it prints must not reach standard output."""
    print("loading")
    with Path(os.environ["LOADED"]).open("a") as file:
        file.write(f"{os.getpid()}\n")
    if os.environ.get("DIES") == (STANDBY if sys.argv[1].isdecimal() else DAEMON):
        os._exit(1)


def report() -> None:
    """What PySpark's `manager` sees."""
    seen = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "variable": os.environ.get("ONLY_SPARKS"),
        "argv": sys.argv[1:],
        "folder": os.getcwd(),
    }
    print(json.dumps(seen), flush=True)
    print("an error", file=sys.stderr, flush=True)
    sys.stdin.read()
    sys.exit(0)


if __name__ == "__main__":
    pyspark.daemon.manager = report
    serve(load)
