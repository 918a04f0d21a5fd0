"""`kbq doctor` finds each kind of problem, and says how to fix it."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from kbq_assets.adapters.duckdb import DuckDbWarehouse
from kbq_assets.core.config.settings import Settings, parse_settings
from kbq_assets.core.errors import Unavailable
from kbq_assets.core.topics.source_list import parse_source_list
from kbq_assets.extras.doctor import cli as doctor
from kbq_assets.extras.doctor import places, topics
from kbq_assets.extras.doctor.check import Check, Outcome
from kbq_assets.local.stack.cli import stack_of
from kbq_assets.local.stack.health import local_services, ports
from kbq_assets.worker.adapters import open_registry
from kbq_assets_tests.fakes.kafka import FakeKafka
from kbq_assets_tests.fakes.registry import FakeRegistry
from kbq_assets_tests.fakes.topic_admin import FakeSubjects
from kbq_assets_tests.fixtures.local_stack import free_ports


def settings_of(home: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """Settings whose local ports are free."""
    kafka, controller, registry = free_ports(3)
    ports = {
        "KBQ_LOCAL_KAFKA_PORT": str(kafka),
        "KBQ_LOCAL_CONTROLLER_PORT": str(controller),
        "KBQ_LOCAL_REGISTRY_PORT": str(registry),
    }
    return parse_settings({"KBQ_HOME": str(home), **ports, **(environ or {})})


@pytest.mark.parametrize(
    ("version", "outcome"),
    [((3, 10), Outcome.FAIL), ((3, 11), Outcome.OK), ((3, 14), Outcome.OK), ((3, 15), Outcome.FAIL)],
)
def test_pythons_that_dagster_does_not_run_on_fail(version: tuple[int, int], outcome: Outcome) -> None:
    assert doctor.python_version(version).outcome is outcome


def test_the_installed_packages_are_the_ones_asked_for() -> None:
    assert {doctor.package_version(name).outcome for name in doctor.CHECKED_PACKAGES} == {Outcome.OK}


def test_a_package_of_another_version_fails_with_what_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: "3.5.0")
    check = doctor.package_version("pyspark")
    assert (check.outcome, check.found.partition(" wanted ")[0]) == (Outcome.FAIL, "3.5.0,")
    assert "4." in check.found
    assert "make setup" in check.fix


def test_a_package_that_is_missing_fails() -> None:
    assert doctor.package_version("no-such-package-of-ours").outcome is Outcome.FAIL


def test_free_ports_of_a_stopped_stack_are_fine(tmp_path: Path) -> None:
    checks = list(ports(stack_of(settings_of(tmp_path))))
    assert [check.outcome for check in checks] == [Outcome.OK, Outcome.OK]


def test_a_port_in_other_hands_warns_naming_the_variable(tmp_path: Path) -> None:
    stack = stack_of(settings_of(tmp_path))
    with socket.create_server(("127.0.0.1", stack.registry_port)):
        kafka, registry = ports(stack)
    assert kafka.outcome is Outcome.OK
    assert (registry.outcome, "KBQ_LOCAL_REGISTRY_PORT" in registry.fix) == (Outcome.WARN, True)


@pytest.mark.parametrize(
    ("gibibytes", "outcome"), [(50.0, Outcome.OK), (3.0, Outcome.WARN), (0.5, Outcome.FAIL)]
)
def test_little_disk_warns_and_hardly_any_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gibibytes: float, outcome: Outcome
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=int(gibibytes * places.GIB))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert places.disk_space(tmp_path / "not" / "yet").outcome is outcome


def test_a_warehouse_that_can_be_read_is_counted_and_no_file_is_made(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "home")
    check = places.warehouse(settings, lambda: DuckDbWarehouse(tmp_path / "home/w.duckdb"))
    assert (check.outcome, check.found) == (Outcome.OK, f"{settings.warehouse_url}: 0 tables")
    assert not (tmp_path / "home").exists()


def test_a_warehouse_where_nobody_may_write_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere
    check = places.warehouse(
        settings_of(tmp_path / "home"), lambda: DuckDbWarehouse(tmp_path / "home/w.duckdb")
    )
    assert (check.outcome, "KBQ_WAREHOUSE" in check.fix) == (Outcome.FAIL, True)


def test_a_warehouse_that_does_not_answer_fails_with_its_advice(tmp_path: Path) -> None:
    def locked() -> DuckDbWarehouse:
        raise Unavailable("python (process 7) holds the file", next_step="end it")

    check = places.warehouse(settings_of(tmp_path), locked)
    assert (check.outcome, check.fix) == (Outcome.FAIL, "end it")


def test_a_good_folder_is_left_as_it_was(tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    assert {check.outcome for check in doctor.folder(staging)} == {Outcome.OK}
    assert list(staging.iterdir()) == []


def test_a_folder_that_cannot_be_made_fails_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    _, check = doctor.folder(tmp_path / "file" / "staging")
    assert check.outcome is Outcome.FAIL
    assert "KBQ_STAGING" in check.fix


def test_a_network_file_system_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "file_system_of", lambda path: "nfs4")
    disk, _ = doctor.folder(tmp_path)
    assert disk.outcome is Outcome.FAIL


def test_the_file_system_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    assert doctor.file_system_of(Path("/proc/self")) == "proc"
    assert doctor.file_system_of(tmp_path / "not" / "yet") not in ("", "proc")


def test_a_broker_that_answers_is_reported_with_its_cluster(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, {"KBQ_KAFKA_BOOTSTRAP_SERVERS": "broker:9092"})
    kafka = FakeKafka()
    check = doctor.broker(settings, local_services(settings), lambda: kafka)
    assert check.outcome is Outcome.OK
    assert kafka.cluster_id() in check.found


def test_a_broker_out_of_reach_fails_with_the_adapters_advice(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, {"KBQ_KAFKA_BOOTSTRAP_SERVERS": "broker:9092"})

    def unreachable() -> FakeKafka:
        raise Unavailable("no answer", next_step="check the network")

    expected = Check("broker", Outcome.FAIL, "broker:9092: no answer", "check the network")
    assert doctor.broker(settings, local_services(settings), unreachable) == expected


def test_a_local_broker_that_is_not_up_fails_at_once(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    check = doctor.broker(settings, local_services(settings), FakeKafka)
    assert (check.outcome, check.fix) == (Outcome.FAIL, "kbq local up")


@pytest.mark.parametrize(
    ("known", "down", "outcome"),
    [
        ({}, False, Outcome.OK),
        ({}, True, Outcome.FAIL),
        ({doctor.UNUSED_SCHEMA_ID: '"string"'}, False, Outcome.WARN),
    ],
)
def test_a_registry_works_when_it_knows_what_it_does_not_know(
    tmp_path: Path, known: Mapping[int, str], down: bool, outcome: Outcome
) -> None:
    registry = FakeRegistry(known)
    registry.down = down
    settings = settings_of(tmp_path)
    check = doctor.registry(settings, local_services(settings), lambda: registry)
    assert check.outcome is outcome
    assert (check.fix == "kbq local up") == down


@pytest.mark.parametrize("down", [True, False])
@pytest.mark.parametrize(
    "address", ["http://me:hunter2@registry:8081", "me:hunter2@registry", "http://me:hun/ter2@x y"]
)
def test_no_check_shows_the_user_of_an_address(tmp_path: Path, address: str, down: bool) -> None:
    variables = {"KBQ_REGISTRY_URL": address, "KBQ_KAFKA_BOOTSTRAP_SERVERS": address}
    settings = settings_of(tmp_path, variables)
    registry, kafka = FakeRegistry({}), FakeKafka()
    registry.down = kafka.down = down
    checks = [
        doctor.registry(settings, local_services(settings), lambda: registry),
        doctor.registry(settings, local_services(settings), lambda: open_registry(settings)),
        doctor.broker(settings, local_services(settings), lambda: kafka),
    ]
    shown = " ".join(map(str, checks))
    assert "ter2" not in shown
    assert "***@" in shown


def test_the_advice_for_a_registry_elsewhere_is_its_adapters(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, {"KBQ_REGISTRY_URL": "http://registry:8081"})
    registry = FakeRegistry({})
    registry.down = True
    assert doctor.registry(settings, local_services(settings), lambda: registry).fix == "start it"


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        ("AVRO", {"type": "record", "name": "P", "fields": [{"name": "email", "type": "string"}]}),
        ("JSON", {"type": "object", "properties": {"email": {"type": "string"}}}),
    ],
)
def test_a_decision_about_no_field_is_reported(kind: str, schema: object) -> None:
    subjects = FakeSubjects()
    subjects.register("people-value", json.dumps(schema), kind)

    def checks(pii: str, topic: str = "people") -> list[Check]:
        sources = parse_source_list(f"{topic} dataset=d pii={pii}", "topics")
        return list(doctor.personal_data(sources, lambda: subjects))

    [found] = checks("email:drop,emial:drop,_key:keep")
    assert (found.outcome, found.found) == (Outcome.WARN, "people: its latest schema does not have emial")
    assert checks("email:drop,_key:keep") == []
    assert checks("emial:drop", "others") == []
    subjects.broken.add("people-value")
    [unread] = checks("email:drop")
    assert (unread.outcome, "HTTP 500" in unread.found) == (Outcome.WARN, True)
    subjects.broken.clear()
    subjects.versions["people-value"].append(("no schema", kind))
    assert checks("emial:drop") == []


def test_topics_without_decisions_ask_nobody() -> None:
    def nobody() -> FakeSubjects:
        raise AssertionError

    sources = parse_source_list("people dataset=d\nkeys dataset=d keys=true pii=_key:keep", "topics")
    assert list(doctor.personal_data(sources, nobody)) == []


def test_a_check_names_its_next_step_in_the_words_of_every_error(capsys: pytest.CaptureFixture[str]) -> None:
    (entry,) = parse_source_list("t nothing=1", "list.txt")
    for check in topics.mistakes([entry]):
        doctor.show(check)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("fail topics          t waits: list.txt:1: ")
    assert [line.strip() for line in shown[1:]] == ["next: fix list.txt:1"]
