"""`kbq demo` refuses what it cannot complete, before it starts anything."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from kbq_assets.core.config.settings import parse_settings
from kbq_assets.definitions import command_line
from kbq_assets.local.demo import cli


def test_a_demo_without_its_catalog_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "start", lambda settings: pytest.fail("it started a broker"))
    settings = parse_settings(
        {"KBQ_HOME": str(tmp_path / "home"), "KBQ_SOURCE_TOPICS": str(tmp_path / "none")}
    )
    parts: Any = SimpleNamespace(
        deployment=SimpleNamespace(settings=settings), for_warehouse=lambda name: parts
    )
    for options in ([], ["--lake"]):
        ran = CliRunner().invoke(command_line(), ["demo", *options], obj=lambda: parts)
        assert (ran.exit_code, "set KBQ_SOURCE_TOPICS" in ran.stderr) == (1, True), ran.output
    assert not (tmp_path / "home").exists()
