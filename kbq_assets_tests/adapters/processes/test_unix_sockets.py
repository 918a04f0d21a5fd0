"""Whether Dagster's processes can make their sockets."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from kbq_assets.adapters.processes.unix_sockets import require_sockets
from kbq_assets.core.errors import ConfigurationError


def test_a_folder_whose_path_is_too_long_for_a_socket_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 110)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(ConfigurationError, match=r"no socket can be made in .*\n  next: set TMPDIR"):
        require_sockets()
    assert list(long.iterdir()) == []


def test_a_folder_for_sockets_stays_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="a b ü", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        require_sockets()
        assert list(Path(folder).iterdir()) == []
