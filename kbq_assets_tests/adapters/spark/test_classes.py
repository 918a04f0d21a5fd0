"""The archive of Spark's classes is used only if it matches and belongs to the user or root, and is optional."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kbq_assets.adapters.java import JavaRuntime
from kbq_assets.adapters.spark.classes import archive_name, archive_options
from kbq_assets_tests.fixtures.variables import Variables


@pytest.fixture
def java(tmp_path: Path, variables: Variables) -> JavaRuntime:
    """A unique Java, and a separate home."""
    variables["HOME"] = str(tmp_path)
    (tmp_path / "release").write_text(f"JAVA_VERSION={tmp_path}")
    return JavaRuntime(tmp_path, 17, "test")


def archive_of(java: JavaRuntime) -> Path:
    path = java.home / ".cache" / "kbq" / archive_name(java)
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_without_an_archive_java_gets_no_option(java: JavaRuntime) -> None:
    assert archive_options(java) == []


def test_the_archive_of_this_java_is_used(java: JavaRuntime) -> None:
    path = archive_of(java)
    assert archive_options(java)[:2] == [f"-XX:SharedArchiveFile={path}", "-Xshare:auto"]


def test_another_release_of_java_does_not_use_it(java: JavaRuntime) -> None:
    archive_of(java)
    (java.home / "release").write_text("JAVA_VERSION=another")
    assert archive_options(java) == []


def test_an_archive_that_another_user_wrote_is_not_trusted(
    java: JavaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive_of(java)
    if os.getuid() == 0:
        os.chown(path, 12_345, -1)
    else:  # who may not give it away becomes another user
        monkeypatch.setattr(os, "getuid", lambda: 12_345)
    assert archive_options(java) == []
