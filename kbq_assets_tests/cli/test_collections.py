"""Commands rarely run Python's garbage collector, and leave its settings unchanged."""

from __future__ import annotations

import gc

import click
import pytest
from click.testing import CliRunner

from kbq_assets.cli import Lazy, command_line


@click.command()
def shown() -> None:
    """Print how often Python looks."""
    click.echo(str(gc.get_threshold()[0]))


@click.command()
def failing() -> None:
    """Fail."""
    raise ValueError("no KBQ error")


@pytest.mark.parametrize("name", ["shown", "failing"])
def test_a_command_searches_rarely_for_circles_of_objects(name: str) -> None:
    before = gc.get_threshold()
    group = command_line({"Test": {name: Lazy(f"{__name__}:{name}", "")}})
    ran = CliRunner().invoke(group, [name])
    assert ran.output == ("50000\n" if name == "shown" else "")
    assert gc.get_threshold() == before
