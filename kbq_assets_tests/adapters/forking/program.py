"""A program that `start_program` runs: it reports about itself to the socket that it inherits, then does as told."""

from __future__ import annotations

import json
import os
import socket
import sys

from kbq_assets.adapters.forking.signals import ignore_all

MODULE = "kbq_assets_tests.adapters.forking.program"


def main() -> None:
    """Report, then read one line: ``end CODE`` ends this process, ``fail`` raises, ``print`` prints into a closed pipe,
    and no line at all returns."""
    ignore_all()
    with socket.socket(fileno=int(sys.argv[1])) as connection, connection.makefile("rw") as lines:
        report = {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "imported": "csv" in sys.modules,
            "variable": os.environ.get("SET_LATER"),
            "folder": os.getcwd(),
            "input": os.readlink("/proc/self/fd/0"),
            "main": sys.modules["__main__"].__spec__.name,  # type: ignore[union-attr]
        }
        print(json.dumps(report), file=lines, flush=True)
        order = lines.readline().split()
    if order[:1] == ["end"]:
        sys.exit(int(order[1]))
    if order == ["fail"]:
        raise RuntimeError("as told")
    if order == ["print"]:
        reading, writing = os.pipe()
        os.dup2(writing, 1)
        os.close(writing)
        os.close(reading)
        print("into nothing")


if __name__ == "__main__":
    main()
