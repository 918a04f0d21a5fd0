"""What the install step prepares: all kernels that workers run, and the classes of Spark's JVM."""

from __future__ import annotations

from kbq_assets.adapters.kafka import native
from kbq_assets.adapters.kafka.fetch import kernels
from kbq_assets.wire import warm


def warm_up() -> None:
    """Compile all kernels, some 10 s, or load them from the disk cache, .3 s."""
    warm.warm_up()
    native.warm_up()
    kernels.warm_up()


def main() -> None:
    """Compile, and write the archive of classes: a first run need wait for neither."""
    from kbq_assets.adapters.java import find_java
    from kbq_assets.adapters.spark.classes import write_archive

    warm_up()
    if write_archive(find_java()) is None:
        print("this Java writes no archive of classes: Spark starts without, 3 s slower")


if __name__ == "__main__":
    main()
