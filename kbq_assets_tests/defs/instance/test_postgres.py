"""Dagster on a real Postgres: daemon, job and UI. Its address is in no file and on no command line."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import kbq_assets.defs
from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.defs.instance.database import VARIABLE, DagsterDatabase
from kbq_assets.defs.instance.orchestrator import DagsterOrchestrator
from kbq_assets.defs.instance.processes import Processes
from kbq_assets_tests.defs import served
from kbq_assets_tests.defs.instance.postgres import postgres, query
from kbq_assets_tests.defs.instance.test_orchestrator import WORKSPACE, arguments_of, ask, run_through
from kbq_assets_tests.fixtures.local_stack import free_ports
from kbq_assets_tests.fixtures.variables import Variables

HOME = Path(kbq_assets.defs.__file__).parent / "home"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A reference to the address of a running Postgres."""
    with postgres() as url:
        file = tmp_path_factory.mktemp("secret") / "postgres"
        file.write_text(f"{url}\n")
        yield f"file:{file}"


def orchestrator_of(home: Path, address: str) -> DagsterOrchestrator:
    configuration = home / "configuration"
    configuration.mkdir()
    for file in HOME.glob("dagster*.yaml"):
        shutil.copy(file, configuration)
    (configuration / "workspace.yaml").write_text(WORKSPACE)
    return DagsterOrchestrator(home, os.environ, lambda: served.defs, configuration, DagsterDatabase(address))


@pytest.mark.slow
def test_daemon_job_and_ui_work_on_postgres(tmp_path: Path, address: str) -> None:
    secret = Path(address.removeprefix("file:")).read_text().strip()
    orchestrator = orchestrator_of(tmp_path, address)
    run = orchestrator.submit("says")
    [port] = free_ports(1)
    answers: list[object] = []

    def work(url: str) -> None:
        assert run_through(orchestrator, run) == ["INFO hello"]
        answers.append(ask(url, "{ runsOrError { ... on Runs { results { runId status } } } }"))
        assert_secret_is_nowhere(tmp_path, secret)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        orchestrator.serve(port, work)
    assert answers == [{"runsOrError": {"results": [{"runId": run, "status": "SUCCESS"}]}}]
    assert orchestrator.outcome(run).succeeded
    assert query(secret, "SELECT run_id FROM runs") == [(run,)]
    assert list((tmp_path / "dagster").rglob("*.db")) == [], "nothing is in SQLite"


def assert_secret_is_nowhere(home: Path, url: str) -> None:
    password = url.partition("kbq:")[2].partition("@")[0]
    read = 0
    for folder, _, names in os.walk(home):  # what is deleted meanwhile is passed over
        for file in (Path(folder, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                assert not file.is_file() or password.encode() not in file.read_bytes(), file
                read += 1
    assert read > 0
    processes = Processes(home / "dagster", home / "logs", {}).found()
    assert processes
    assert not any(password in argument for process in processes for argument in arguments_of(process))


@pytest.mark.parametrize(
    "url",
    ["postgresql://u:p@h:5432/d", "postgres://u:p@h:5432/d", "postgresql+psycopg2://u:p@h:5432/d"],
)
def test_an_address_gets_the_driver_that_is_installed(url: str, variables: Variables) -> None:
    variables["DATABASE"] = url
    for reference in (url, "env:DATABASE"):
        assert DagsterDatabase(reference).environ() == {VARIABLE: "postgresql+psycopg2://u:p@h:5432/d"}


@pytest.mark.parametrize("reference", ["host:5432/secret", "mysql://u:secret@h/d", "env:NOT_SET_ANYWHERE"])
def test_what_is_no_address_is_refused_without_showing_it(reference: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        DagsterDatabase(reference).url()
    assert "secret" not in str(refused.value)
    assert VARIABLE in str(refused.value)


def test_a_postgres_that_does_not_answer_is_reported(tmp_path: Path) -> None:
    [port] = free_ports(1)
    orchestrator = orchestrator_of(tmp_path, f"postgresql://kbq:secret@127.0.0.1:{port}/dagster")
    with pytest.raises(Unavailable) as said:
        orchestrator.submit("says")
    assert "secret" not in str(said.value)


def test_both_configurations_differ_in_the_storage_alone() -> None:
    shipped, variant = (
        yaml.safe_load((HOME / name).read_text()) for name in ("dagster.yaml", "dagster-postgres.yaml")
    )
    assert variant.pop("storage") == {"postgres": {"postgres_url": {"env": VARIABLE}}}
    assert variant == shipped
