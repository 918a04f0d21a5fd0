"""``kbq pack``: an archive of everything that a cluster's workers import."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("archive", type=click.Path(dir_okay=False, path_type=Path))
def pack(archive: Path) -> None:
    """Pack this package and what its Spark tasks need into ARCHIVE, a .tar.gz of some 120 MB.

    It contains the packages installed here and the compiled kernels, for hosts of the same platform and the same minor
    version of Python. Pack again after an update.
    """
    from kbq_assets.adapters.spark.environment import FOLDER, write_environment
    from kbq_assets.wire.jit import shippable
    from kbq_assets.worker.warm import warm_up

    warm_up()
    write_environment(archive, shippable())
    click.echo(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB")
    click.echo(f"to ship it: KBQ_SPARK_CONF_spark.archives={archive.absolute()}#{FOLDER}")
