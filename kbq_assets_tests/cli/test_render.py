"""Documents that commands print."""

from __future__ import annotations

import json

import pytest

from kbq_assets.cli import render


@pytest.mark.parametrize(("items", "lines"), [(3, 5), (200_000, 1)], ids=["for people", "for programs"])
def test_a_large_document_is_one_line(items: int, lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    document = [f"é{number}" for number in range(items)]
    render.echo_json(document)
    printed = capsys.readouterr().out
    assert json.loads(printed) == document
    assert len(printed.splitlines()) == lines
    assert "é" in printed
