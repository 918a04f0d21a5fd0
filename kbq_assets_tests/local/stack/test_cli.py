"""`kbq local`: what it shows, and what its exit codes say."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kbq_assets.core.config.settings import parse_settings
from kbq_assets.definitions import Adapters, Parts, command_line
from kbq_assets.local.stack import LocalStack
from kbq_assets_tests.fixtures.local_stack import free_ports


def run(home: Path, ports: list[int], *arguments: str) -> Result:
    names = ("KAFKA", "CONTROLLER", "REGISTRY")
    environ = {f"KBQ_LOCAL_{name}_PORT": str(port) for name, port in zip(names, ports, strict=True)}
    settings = parse_settings({"KBQ_HOME": str(home), **environ})
    return CliRunner().invoke(command_line(), ["local", *arguments], obj=lambda: Parts(Adapters(settings)))


def ports_of(stack: LocalStack) -> list[int]:
    return [stack.kafka_port, stack.controller_port, stack.registry_port]


def test_a_stopped_stack_is_shown_as_such_with_exit_code_one(tmp_path: Path) -> None:
    shown = run(tmp_path, free_ports(3), "status")
    assert shown.exit_code == 1
    assert shown.output.count("stopped") == 2


def test_stopping_a_stopped_stack_is_no_error(tmp_path: Path) -> None:
    stopped = run(tmp_path, free_ports(3), "down")
    assert stopped.exit_code == 0
    assert "nothing of the local stack is running" in stopped.output


def test_a_taken_port_is_an_error_that_names_its_variable(tmp_path: Path) -> None:
    ports = free_ports(3)
    with socket.create_server(("127.0.0.1", ports[0])):
        refused = run(tmp_path, ports, "up")
    assert refused.exit_code == 1
    assert f"port {ports[0]}" in refused.output
    assert "KBQ_LOCAL_KAFKA_PORT" in refused.output


@pytest.mark.kafka
def test_a_running_stack_is_shown_with_pids_and_exit_code_zero(local_stack: LocalStack) -> None:
    deadline = time.monotonic() + 300
    while (shown := run(local_stack.home, ports_of(local_stack), "status", "--json")).exit_code:
        # A service that is starved may not answer within the seconds that a status gives it.
        assert time.monotonic() < deadline, shown.output
    services = json.loads(shown.output)
    assert [service["service"] for service in services] == ["kafka", "registry"]
    assert [service["pid"] for service in services] == [status.pid for status in local_stack.status()]
    assert all(service["healthy"] for service in services)


@pytest.mark.kafka
def test_up_on_a_running_stack_says_where_it_serves(local_stack: LocalStack) -> None:
    started = run(local_stack.home, ports_of(local_stack), "up")
    assert started.exit_code == 0
    assert local_stack.bootstrap_servers in started.output
    assert local_stack.registry_url in started.output
