"""``kbq pack``: packs everything that a cluster's workers import into an archive."""

from __future__ import annotations

from pathlib import Path

import click

from kbq_assets.cli.context import pass_deployment
from kbq_assets.core.config.locations import LakeAddress
from kbq_assets.pipelines.deployment import Deployment


@click.command()
@click.argument("archive", type=click.Path(dir_okay=False, path_type=Path))
@pass_deployment
def pack(deployment: Deployment, archive: Path) -> None:
    """Pack this package and everything that its Spark tasks need into ARCHIVE, a .tar.gz of about 140 MB.

    The archive has the packages installed here and the compiled kernels. It works on hosts with the same platform and
    the same minor version of Python. If KBQ_WAREHOUSE is a lake, it also has pyarrow and pyiceberg for compaction,
    about 100 MB more. Pack again after an update.
    """
    from kbq_assets.adapters.spark.environment import FOLDER, write_environment
    from kbq_assets.wire.jit import shippable
    from kbq_assets.worker.warm import warm_up

    warm_up()
    with_lake = any(isinstance(each.place, LakeAddress) for each in deployment.settings.warehouses)
    write_environment(archive, shippable(), with_lake=with_lake)
    click.echo(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB")
    click.echo(f"to ship it: KBQ_SPARK_CONF_spark.archives={archive.absolute()}#{FOLDER}")
