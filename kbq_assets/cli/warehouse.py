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
    """Give up a warehouse besides the first: no staged file waits for it any more, and its name is not used again.

    Its tables stay as they are. Afterwards, take it out of KBQ_WAREHOUSE and of the topics' `warehouses`.
    """
    confirm([operator.remove_warehouse(name)], yes=yes)
