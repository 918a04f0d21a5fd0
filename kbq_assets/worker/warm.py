"""Prepares an installation: compiles the kernels that workers run, and writes the class archive of Spark's JVM."""

from __future__ import annotations

from kbq_assets.adapters.kafka.fetch import kernels
from kbq_assets.wire import warm


def warm_up() -> None:
    """Compile all kernels (about 20 s), or load them from the disk cache (0.3 s)."""
    warm.warm_up()
    kernels.warm_up()


def main() -> None:
    """Compile the kernels and write the class archive, so that the first run waits for neither."""
    from kbq_assets.adapters.java import find_java
    from kbq_assets.adapters.spark.classes import write_archive

    warm_up()
    if write_archive(find_java()) is None:
        print("this Java cannot write a class archive: Spark starts 3 s slower without it")


if __name__ == "__main__":
    main()
