"""The `kbq` command: the spine's commands, and those of the extras."""

from __future__ import annotations

import click

from kbq_assets import cli
from kbq_assets.cli import Lazy


def command_line() -> click.Group:
    """The `kbq` command: the spine's commands and those of the extras."""

    def lazy(place: str, text: str) -> Lazy:
        return Lazy(f"kbq_assets.{place}", text)

    start = {
        "Start": {
            "init": lazy(
                "extras.catalog.start:init", "Write settings, a catalog and first checks into this folder."
            ),
            "catalog": lazy(
                "extras.catalog.cli:catalog", "Validate, show and apply the topic catalog; start one."
            ),
            "doctor": lazy("extras.doctor.cli:doctor", "Check the prerequisites, and say how to fix them."),
            "local": lazy("local.stack.cli:local", "A Kafka broker and a schema registry without Docker."),
            "demo": lazy(
                "local.demo.cli:demo", "From a broker with real data to an account of every record."
            ),
        },
    }
    extras = {
        "Run": {
            "files": lazy("extras.filebatches.cli:files", "Apply batches of files from a bucket or folder."),
        },
        "Observe": {
            "reconcile": lazy(
                "extras.reconcile.cli:reconcile", "Account for every record; exit code 1 if not."
            ),
            "where": lazy(
                "extras.where.cli:where", "Where a record, a staged file or a load job's files are."
            ),
            "notify": lazy("extras.notices.cli:notify", "Notify who is on call of problems, or send a test."),
            "serve": lazy("extras.metrics.cli:serve", "Health, status and Prometheus metrics over HTTP."),
        },
    }
    return cli.command_line(cli.merged(start, cli.COMMANDS, extras))
