"""The servers as they are started: real clients reach them, and a killed one comes back with its data."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbq_assets.core.config.roles import Role
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.definitions import Parts, parts
from kbq_assets_tests.contracts.warehouse import SCHEMA
from kbq_assets_tests.google.install import Program
from kbq_assets_tests.google.servers import BigQueryServer, GcsServer

pytestmark = [pytest.mark.thorough, pytest.mark.google]


def test_the_storage_client_writes_reads_and_lists(gcs_server: GcsServer) -> None:
    bucket = gcs_server.client().bucket(gcs_server.new_bucket())
    bucket.blob("a/b c.txt").upload_from_string(b"text", if_generation_match=0)
    assert bucket.blob("a/b c.txt").download_as_bytes() == b"text"
    assert [blob.name for blob in bucket.list_blobs(prefix="a/")] == ["a/b c.txt"]


def test_the_query_client_sees_its_rows(bigquery_server: BigQueryServer) -> None:
    rows = bigquery_server.client().query("SELECT 1 AS one").result()
    assert [row.one for row in rows] == [1]


def test_a_dataset_that_many_create_at_once_is_there_for_all(bigquery_server: BigQueryServer) -> None:
    client, name = bigquery_server.client(), bigquery_server.new_dataset() + "_shared"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: client.create_dataset(name, exists_ok=True), range(8)))
    assert {dataset.dataset_id for dataset in made} == {name}


@contextmanager
def served_by_hand(folder: Path) -> Iterator[Parts]:
    """`make google` in a separate folder until Ctrl-C, and the platform that its settings describe."""
    command = [sys.executable, "-m", "kbq_assets_tests.google", str(folder)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as served:
        try:
            assert served.stderr is not None
            assert "source" in served.stderr.readline()
            lines = re.findall(r"^export (\w+)='(.*)'$", (folder / "settings.sh").read_text(), re.MULTILINE)
            yield parts({"KBQ_HOME": str(folder), **dict(lines)})
        finally:
            served.send_signal(signal.SIGINT)
    assert served.returncode == 0


@pytest.mark.thorough
def test_servers_started_by_hand_are_found_by_their_settings_and_keep_their_data(
    gcs_program: Program, bigquery_program: Program, tmp_path: Path
) -> None:
    table = TableReference("shop", "orders")
    with served_by_hand(tmp_path) as found:
        found.deployment.store.create("commits/a.json", b"{}")
        found.deployment.warehouse.create_table(table, columns_of(SCHEMA), TableOptions())
    with served_by_hand(tmp_path) as found:
        assert [entry.path for entry in found.deployment.store.list("commits/")] == ["commits/a.json"]
        assert found.deployment.warehouse.tables() == (table,)
        assert found.adapters.examine_staging(Role.LOAD) == ()  # no warnings
