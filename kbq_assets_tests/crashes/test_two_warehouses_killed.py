"""kill -9 of replays, their promotions, and replays of error rows in each of two warehouses: the other one goes on, and
in the end both have every record once (PROTOCOL R13)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kbq_assets_tests.crashes.two_warehouses_killed import WORST
from kbq_assets_tests.sizes import EVERY_NTH_WAREHOUSES_POINT

pytestmark = pytest.mark.thorough


def killed(folder: Path, *arguments: str) -> Any:
    """What a campaign found, which must be nothing wrong."""
    command = [
        sys.executable,
        "-m",
        "kbq_assets_tests.crashes.two_warehouses_killed",
        str(folder),
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout or "{}")
    assert (done.returncode, found.get("failed")) == (0, []), done.stdout + done.stderr
    return found


def test_a_promotion_that_dies_in_one_of_two_warehouses_leaves_the_other_alone(tmp_path: Path) -> None:
    assert killed(tmp_path, "few")["killed"] == len(WORST)


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "at_least"), [("replays", 1_500), ("errors", 350)])
def test_what_dies_in_one_of_two_warehouses_ends_with_every_record_in_both_once(
    tmp_path: Path, scene: str, at_least: int
) -> None:
    found = killed(tmp_path, str(EVERY_NTH_WAREHOUSES_POINT), scene)
    assert found["points"] >= at_least
    assert found["killed"] >= found["points"] // EVERY_NTH_WAREHOUSES_POINT
