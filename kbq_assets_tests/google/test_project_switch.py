"""The suite for a real project: deselected unless asked for; where it is, it goes to the place that variables name, and
leaves nothing there. Here that place is the local servers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kbq_assets_tests.google.project.place import LEASE_HOURS, is_dead, run_name
from kbq_assets_tests.google.servers import QUIET_PROJECT, BigQueryServer, GcsServer

pytestmark = [pytest.mark.thorough, pytest.mark.google]

SUITE = Path(__file__).parent / "project"
REPOSITORY = Path(__file__).resolve().parents[2]
#: One of each kind: a store's contract, a warehouse's, a load that dies, two loaders, a statement.
CHOSEN = (
    "test_contracts.py::TestBucket::test_a_swap_replaces_the_whole_object",
    "test_contracts.py::TestBigQuery::test_only_tables_with_positions_are_listed",
    "test_contracts.py::TestBigQuery::test_a_bad_file_among_good_ones_keeps_all_out[1]",
    "test_contracts.py::TestBigQuery::test_notes_about_a_table_stay_with_it",
    "test_loads.py::test_a_death_changes_no_outcome[success-store.swap tables, after #1]",
    "test_behavior.py::test_rows_older_than_their_dataset_s_default_stay",
    "test_behavior.py::test_a_header_of_an_odd_schema_is_read[odd40]",
    "test_behavior.py::test_a_load_right_after_a_change_of_its_table_succeeds",
    "test_statements.py::test_table_and_ledger_change_together_or_not_at_all[delete_insert]",
)


def _run(*arguments: str, **environ: str) -> tuple[int, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RUN_", "KBQ_", "PYTEST_"))}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=REPOSITORY,
        env={**inherited, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout[-3000:]


def test_without_being_asked_for_nothing_of_it_runs() -> None:
    code, said = _run(str(SUITE), "--collect-only", KBQ_NO_SKIP="1")
    assert (code, re.search(r"no tests collected \((\d+) deselected\)", said) is not None) == (5, True), said


def test_it_says_what_it_needs() -> None:
    code, said = _run(f"{SUITE}/{CHOSEN[0]}", RUN_INTEGRATION_TESTS="true", KBQ_TEST_GCP_PROJECT="p")
    assert (code, "RUN_INTEGRATION_TESTS=true needs KBQ_TEST_GCP_BUCKET" in said) == (1, True), said


@pytest.mark.slow  # nine tests of the suite, in a process of their own
def test_it_runs_where_the_variables_say_and_leaves_nothing(
    gcs_server: GcsServer, bigquery_server: BigQueryServer
) -> None:
    bucket, before = gcs_server.new_bucket(), _datasets(bigquery_server)
    dead = run_name(hours=400_000)
    bigquery_server.client().create_dataset(f"{QUIET_PROJECT}.{dead}_1")
    gcs_server.client().bucket(bucket).blob(f"{dead}/a").upload_from_string(b"")
    code, said = _run(
        *(f"{SUITE}/{name}" for name in CHOSEN),
        RUN_INTEGRATION_TESTS="true",
        KBQ_TEST_GCP_PROJECT=QUIET_PROJECT,
        KBQ_TEST_GCP_BUCKET=bucket,
        KBQ_LOAD_CREDENTIALS="anonymous",
        KBQ_GCS_ENDPOINT=gcs_server.endpoint,
        KBQ_BIGQUERY_ENDPOINT=bigquery_server.endpoint,
    )
    assert (code, f"{len(CHOSEN)} passed" in said) == (0, True), said
    assert list(gcs_server.client().list_blobs(bucket)) == []
    assert _datasets(bigquery_server) == before
    asked = {r.path.split("/")[4] for r in gcs_server.requested("objects.delete")}
    assert bucket in asked


def test_only_what_dead_runs_left_is_removed() -> None:
    hours = 490_000
    assert is_dead(run_name(hours - LEASE_HOURS - 1), hours)
    others = (run_name(hours - LEASE_HOURS), "kbq_test_data", "shop", f"x_{run_name(1)}")
    assert [name for name in others if is_dead(name, hours)] == []


def _datasets(server: BigQueryServer) -> set[str]:
    return {dataset.dataset_id for dataset in server.client().list_datasets(QUIET_PROJECT)}
