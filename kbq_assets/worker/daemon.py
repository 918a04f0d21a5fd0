"""The process that forks Spark's Python workers: ``python -m kbq_assets.worker.daemon pyspark.worker``.

It imports the tasks' modules and loads the kernels once, not in every worker. With descriptors as arguments, it is a
standby (`adapters/spark/daemon.py`).
"""

from __future__ import annotations

import os
import sys
from typing import Final

MODULE: Final = "kbq_assets.worker.daemon"
"""The module's name, for Spark's `spark.python.daemon.module`."""


def load() -> None:
    """Import and compile everything that a task needs."""
    # Workers multiply no matrices, so numpy's idle threads would only cost time.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import encodings.idna  # noqa: F401 (for the first connection)

    import kbq_assets.adapters.clock
    import kbq_assets.adapters.kafka.reader
    import kbq_assets.adapters.registry
    import kbq_assets.worker.adapters
    import kbq_assets.worker.task
    import kbq_assets.worker.unit  # noqa: F401
    from kbq_assets.worker.warm import warm_up

    warm_up()


def main() -> None:
    """Load, then serve until Spark closes standard input."""
    # Spark puts a zip of PySpark's sources first in the path, and every process would compile them again.
    sys.path[:] = [entry for entry in sys.path if not entry.endswith("/pyspark.zip")]
    from kbq_assets.adapters.spark.daemon import serve

    serve(load)


if __name__ == "__main__":
    main()
