"""The local stack, with a real broker and a real registry."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbq_assets.adapters.processes.daemons import marked_processes, marker_of, record_path
from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.local.stack import LocalStack, ServiceState
from kbq_assets_tests.fixtures.local_stack import SILENT, stack_with_free_ports

pytestmark = pytest.mark.kafka

UP = """
import sys
from pathlib import Path
from rich.console import Console
from kbq_assets.local.stack import LocalStack
home, *ports, installed = sys.argv[1:]
LocalStack(Path(home), *map(int, ports), Path(installed), console=Console(quiet=True)).up()
"""
ONE_FIELD = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}
INCOMPATIBLE = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "string"}]}


@pytest.fixture
def own_stack(tmp_path: Path) -> Iterator[LocalStack]:
    """A stack that the test may stop and kill."""
    # A folder's name as people have them.
    stack = stack_with_free_ports(tmp_path / "my home (copy)")
    yield stack
    stack.down()


def register(stack: LocalStack, subject: str, schema: object) -> int:
    """The id that the registry gives to ``schema``."""
    request = urllib.request.Request(
        f"{stack.registry_url}/subjects/{subject}/versions",
        data=json.dumps({"schema": json.dumps(schema)}).encode(),
        headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        return int(json.load(response)["id"])


def pids(stack: LocalStack) -> list[int | None]:
    return [service.pid for service in stack.status()]


def running(stack: LocalStack) -> list[psutil.Process]:
    """Every process that carries a marker of this stack."""
    markers = [marker_of(service, stack.home) for service in ("kafka", "registry")]
    return [process for marker in markers for process in marked_processes(marker)]


def test_up_again_changes_nothing(local_stack: LocalStack) -> None:
    before = pids(local_stack)
    local_stack.up()
    assert pids(local_stack) == before
    assert all(service.healthy for service in local_stack.status())


def test_topics_are_never_created_by_asking_for_them(local_stack: LocalStack) -> None:
    admin = AdminClient({"bootstrap.servers": local_stack.bootstrap_servers})
    admin.list_topics("nobody-made-this", timeout=120)
    assert "nobody-made-this" not in admin.list_topics(timeout=120).topics


def test_transactions_work_on_one_broker(local_stack: LocalStack) -> None:
    admin = AdminClient({"bootstrap.servers": local_stack.bootstrap_servers})
    admin.create_topics([NewTopic("local-stack-transactions", 1)])["local-stack-transactions"].result(120)
    producer = Producer(
        {"bootstrap.servers": local_stack.bootstrap_servers, "transactional.id": "local-stack-test"}
    )
    producer.init_transactions(120)
    producer.begin_transaction()
    producer.produce("local-stack-transactions", b"x")
    producer.commit_transaction(120)


def test_the_registry_refuses_an_incompatible_schema(local_stack: LocalStack) -> None:
    register(local_stack, "local-stack-compatibility-value", ONE_FIELD)
    with pytest.raises(urllib.error.HTTPError) as refused:
        register(local_stack, "local-stack-compatibility-value", INCOMPATIBLE)
    refused.value.close()
    assert refused.value.code == 409


@pytest.mark.slow
@pytest.mark.parametrize("end", ["down", "kill"])
def test_topics_and_schema_ids_outlive_the_stack(own_stack: LocalStack, end: str) -> None:
    own_stack.up()
    admin = AdminClient({"bootstrap.servers": own_stack.bootstrap_servers})
    admin.create_topics([NewTopic("kept", 3)])["kept"].result(120)
    first = register(own_stack, "first-value", ONE_FIELD)
    second = register(own_stack, "second-value", INCOMPATIBLE)
    if end == "down":
        own_stack.down()
        assert {service.state for service in own_stack.status()} == {ServiceState.STOPPED}
    else:
        for process in running(own_stack):
            process.kill()
            process.wait(120)
        assert {service.state for service in own_stack.status()} == {ServiceState.DEAD}
    own_stack.up()
    admin = AdminClient({"bootstrap.servers": own_stack.bootstrap_servers})
    assert len(admin.list_topics(timeout=120).topics["kept"].partitions) == 3
    assert register(own_stack, "second-value", INCOMPATIBLE) == second
    assert register(own_stack, "first-value", ONE_FIELD) == first


@pytest.mark.slow
# From the first import to a serving stack; the last one is killed while it waits.
@pytest.mark.parametrize("seconds", [0.4, 1.6, 4.0])
def test_up_killed_at_any_moment_leaves_nothing_that_the_next_up_and_down_cannot_fix(
    own_stack: LocalStack, seconds: float
) -> None:
    ports = (own_stack.kafka_port, own_stack.controller_port, own_stack.registry_port)
    arguments = [str(argument) for argument in (own_stack.home, *ports, own_stack.installed)]
    with subprocess.Popen([sys.executable, "-c", UP, *arguments]) as killed:
        time.sleep(seconds)
        killed.kill()
    own_stack.up()
    assert len(running(own_stack)) == 2
    assert all(service.healthy for service in own_stack.status())
    own_stack.down()
    assert running(own_stack) == []


@pytest.mark.slow
def test_down_stops_what_a_killed_up_had_not_recorded(own_stack: LocalStack) -> None:
    own_stack.up()
    for service in ("kafka", "registry"):
        record_path(service, own_stack.home).unlink()
    own_stack.down()
    assert running(own_stack) == []


@pytest.mark.parametrize("option", ["kafka_port", "controller_port", "registry_port"])
def test_a_taken_port_is_refused_naming_port_holder_and_variable(own_stack: LocalStack, option: str) -> None:
    port = getattr(own_stack, option)
    reported = rf"port {port}\D.*process {os.getpid()}\b"
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(ConfigurationError, match=reported) as refused,
    ):
        own_stack.up()
    assert f"KBQ_LOCAL_{option.upper()}" in refused.value.next_step
    assert running(own_stack) == []


def test_a_running_stack_is_not_started_again_on_another_port(local_stack: LocalStack) -> None:
    moved = LocalStack(
        local_stack.home, local_stack.kafka_port + 1, local_stack.controller_port, console=SILENT
    )
    with pytest.raises(ConfigurationError, match=str(local_stack.kafka_port)):
        moved.up()
    assert not moved.status()[0].healthy


@pytest.mark.thorough
def test_a_broker_that_cannot_start_says_why(own_stack: LocalStack) -> None:
    own_stack.install()
    # Storage of another format version.
    data = own_stack.home / "kafka" / "data"
    data.mkdir(parents=True)
    (data / "meta.properties").write_text("version=99\n")
    with pytest.raises(Unavailable, match="kafka ended while starting") as ended:
        own_stack.up()
    assert "meta.properties" in ended.value.message


def test_down_leaves_the_processes_of_others_alone(own_stack: LocalStack) -> None:
    with subprocess.Popen(["sleep", "600"]) as stranger:
        record = {"pid": stranger.pid, "started_at": psutil.Process(stranger.pid).create_time(), "port": 1}
        record_path("kafka", own_stack.home).parent.mkdir(parents=True)
        record_path("kafka", own_stack.home).write_text(json.dumps(record))
        own_stack.down()
        assert stranger.poll() is None
        stranger.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("name", ["a,b", "a;b", "a:b"])
def test_a_home_whose_name_would_be_read_as_several_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        LocalStack(tmp_path / name)
