"""The standard streams of a command whose caller has closed some of them."""

from __future__ import annotations

import os
import sys
from typing import Final

_STREAMS: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_closed_streams() -> None:
    """Open the null device in place of closed streams. Otherwise the next file or socket would get a stream's number,
    and whatever a library or a child process prints would go there."""
    for number, (name, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            try:
                os.fstat(number)
            except OSError:  # the lowest free number is this one
                os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
