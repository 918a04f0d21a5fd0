"""Runs every block of docs/first-topic.md in order, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbq_assets_tests.fixtures.local_stack import INSTALLED, REPOSITORY, free_ports

PAGE = REPOSITORY / "docs" / "first-topic.md"
#: Commands that take their broker from the test, which reuses the programs that are installed already.
SCRIPTS = Path(sysconfig.get_path("scripts"))


def blocks() -> list[str]:
    """The shell blocks of the page."""
    return re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_page_leads_from_an_empty_folder_to_a_query() -> None:
    text = "\n".join(blocks())
    order = [
        "mkdir",
        "kbq local up",
        "kbq init",
        "kbq doctor",
        "kbq extract",
        "kbq load",
        "SELECT",
        "kbq reconcile",
    ]
    places = [text.index(each) for each in order]
    assert places == sorted(places)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder whose local stack is stopped afterwards."""
    made = tmp_path / "first-topic"
    (made / ".kbq").mkdir(parents=True)
    (made / ".kbq" / "installed").symlink_to(INSTALLED.resolve())
    yield tmp_path
    subprocess.run(["kbq", "local", "down"], cwd=made, env=environ(), check=False)


def environ() -> dict[str, str]:
    """This process's environment without settings of KBQ; `kbq` and `python` are this one's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KBQ_")}
    return {**kept, "PATH": f"{SCRIPTS}{os.pathsep}{kept['PATH']}", "PYTHONPATH": str(REPOSITORY)}


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.spark
def test_every_command_of_the_page_runs_in_order(folder: Path) -> None:
    kafka, controller, registry = free_ports(3)
    ports = {
        "KBQ_LOCAL_KAFKA_PORT": str(kafka),
        "KBQ_LOCAL_CONTROLLER_PORT": str(controller),
        "KBQ_LOCAL_REGISTRY_PORT": str(registry),
    }
    script = "set -eux\n" + "\n".join(blocks())
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**environ(), **ports},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "every record accounted for: yes" in ran.stdout
    assert re.search(r"FR\s.*250\s", ran.stdout), ran.stdout
    assert re.search(r"/items/0\s.*77\s", ran.stdout), ran.stdout
