"""A process with a pool, which its test kills: ``python -m kbq_assets_tests.adapters.process_pool.driver``.

It prints the ids of its pool's server and of a worker whose task never ends by itself.
"""

from __future__ import annotations

import threading
import time

from kbq_assets.adapters.process_pool.pool import ProcessPool
from kbq_assets_tests.adapters.process_pool import serving
from kbq_assets_tests.adapters.process_pool.test_process_pool import parent_and_self


def forever(item: object) -> None:
    while True:
        time.sleep(60)


if __name__ == "__main__":
    with ProcessPool(serving.MODULE, 1) as pool:
        print(*pool.run(parent_and_self, None), flush=True)
        threading.Thread(target=pool.run, args=(forever, None), daemon=True).start()
        forever(None)
