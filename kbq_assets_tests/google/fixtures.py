"""`gcs_server` and `bigquery_server`: one of each per pytest worker, installed at first use.

The programs are in ``<repository>/.kbq/installed`` and are built once. Tests that kill a server start their own one
with `run_gcs` and `run_bigquery`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbq_assets_tests.fixtures.local_stack import INSTALLED
from kbq_assets_tests.google import install
from kbq_assets_tests.google.install import Program, Tell
from kbq_assets_tests.google.tools import NotInstallable

# Every test run loads this module: Google's clients wait until a test wants a server.
if TYPE_CHECKING:
    from kbq_assets_tests.google.servers import BigQueryServer, GcsServer


@pytest.fixture(scope="session")
def gcs_program(pytestconfig: pytest.Config) -> Program:
    """fake-gcs-server, installed."""
    return _installed(install.fake_gcs_server, pytestconfig)


@pytest.fixture(scope="session")
def bigquery_program(pytestconfig: pytest.Config) -> Program:
    """local-bigquery, installed."""
    return _installed(install.local_bigquery, pytestconfig)


@pytest.fixture(scope="session")
def gcs_server(gcs_program: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """Cloud Storage: ``.endpoint``, ``.client()``, ``.new_bucket()``, ``.faults``, ``.requests``."""
    from kbq_assets_tests.google.servers import run_gcs

    with run_gcs(gcs_program, tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(scope="session")
def bigquery_server(
    bigquery_program: Program, gcs_server: GcsServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BigQueryServer]:
    """BigQuery: ``.endpoint``, ``.project``, ``.client()``, ``.new_dataset()``, ``.faults``, ``.requests``."""
    from kbq_assets_tests.google.servers import run_bigquery

    with run_bigquery(bigquery_program, tmp_path_factory.mktemp("bigquery"), gcs_server) as server:
        yield server


def _installed(installs: Callable[[Path, Tell], Program], config: pytest.Config) -> Program:
    """The program, or a skip that says what is missing: a failure where no skip is allowed (KBQ_NO_SKIP=1)."""
    capture = config.pluginmanager.getplugin("capturemanager")

    def tell(message: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{message}", flush=True)

    try:
        return installs(INSTALLED, tell)
    except NotInstallable as missing:
        pytest.skip(str(missing))
