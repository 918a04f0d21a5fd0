"""No exception leaves its unit, no case takes over 2 CPU seconds or 200 MB, and neighbors are extracted.

``KBQ_FUZZ_CASES`` sets the number of cases, ``KBQ_FUZZ_SEED`` the first seed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kbq_assets.wire.warm import warm_up
from kbq_assets_tests.fuzz.bounds import bounded
from kbq_assets_tests.fuzz.subjects import SUBJECTS, Subject
from kbq_assets_tests.sizes import FUZZ_CASES

FIRST_SEED = int(os.environ.get("KBQ_FUZZ_SEED", "0"))


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """No case pays for kernels."""
    warm_up()


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_no_fault_leaves_its_unit(subject: Subject, tmp_path: Path) -> None:
    rounds = max(1, round(FUZZ_CASES * subject.share / subject.cases))
    for seed in range(-8, 0):  # compiles and imports, for each choice of options: not measured
        subject.run(seed, _folder(tmp_path, seed))
    for seed in range(FIRST_SEED, FIRST_SEED + rounds):
        case = f"{subject.name}, KBQ_FUZZ_SEED={seed}"
        try:
            with bounded(case):
                subject.run(seed, _folder(tmp_path, seed))
        except Exception as error:
            raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error


def _folder(parent: Path, seed: int) -> Path:
    folder = parent / str(seed)
    folder.mkdir()
    return folder


def test_a_case_out_of_bounds_is_noticed() -> None:
    with pytest.raises(AssertionError, match="slow took"), bounded("slow", most_seconds=0.0):
        sum(range(100_000))
    with pytest.raises(AssertionError, match="large took"), bounded("large", most_bytes=-1):
        pass
