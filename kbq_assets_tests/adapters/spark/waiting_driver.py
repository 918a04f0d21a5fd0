"""A driver with a standby, which its test kills: ``python -m kbq_assets_tests.adapters.spark.waiting_driver``.

It prints the path of the standby's socket.
"""

from __future__ import annotations

import sys

from kbq_assets.adapters.spark.standby import standby
from kbq_assets_tests.adapters.spark import standing_by

if __name__ == "__main__":
    with standby(standing_by.MODULE) as options:
        print(*options.values(), flush=True)
        sys.stdin.read()
