"""``kbq warehouse``: removes one of several warehouses."""

from __future__ import annotations

import click

from kbq_assets.cli.context import confirm, pass_operator, yes_option
from kbq_assets.pipelines.operate.operator import Operator


@click.group()
def warehouse() -> None:
    """Remove one of several warehouses."""


@warehouse.command()
@click.argument("name")
@yes_option
@pass_operator
def remove(operator: Operator, name: str, yes: bool) -> None:
    """Remove a warehouse other than the first: staged files no longer wait for it, and its name is not used again.

    Its tables stay as they are. Afterwards, remove its name from KBQ_WAREHOUSE and from the topics' `warehouses`.
    """
    confirm([operator.remove_warehouse(name)], yes=yes)
