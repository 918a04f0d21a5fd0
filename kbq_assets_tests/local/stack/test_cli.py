"""`kbq local`: its output and its exit codes."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kbq_assets.adapters.processes.loopback_ports import can_listen
from kbq_assets.adapters.settings_file import remember_ports, remembered_ports
from kbq_assets.core.config.settings import parse_settings
from kbq_assets.definitions import Adapters, Parts, command_line, parts
from kbq_assets.extras.doctor.check import Outcome
from kbq_assets.local.stack import LocalStack, on_free_ports
from kbq_assets.local.stack.cli import stack_of
from kbq_assets.local.stack.health import ports
from kbq_assets_tests.fixtures.local_stack import free_ports
from kbq_assets_tests.fixtures.variables import Variables


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


def test_samples_need_a_running_stack(tmp_path: Path) -> None:
    refused = run(tmp_path, free_ports(3), "sample")
    assert refused.exit_code == 1
    assert "the local stack does not run\n  next: kbq local up" in refused.output


def test_a_taken_port_is_an_error_that_names_its_variable(tmp_path: Path) -> None:
    ports = free_ports(3)
    with socket.create_server(("127.0.0.1", ports[0])):
        refused = run(tmp_path, ports, "up")
    assert refused.exit_code == 1
    assert f"port {ports[0]}" in refused.output
    assert "KBQ_LOCAL_KAFKA_PORT" in refused.output


def test_a_taken_port_that_nobody_chose_becomes_a_free_one_before_anything_is_installed(
    tmp_path: Path,
) -> None:
    first, second, third = free_ports(3)
    remember_ports(tmp_path, {"kafka_port": first, "controller_port": second, "registry_port": third})
    settings = parse_settings({}, remembered_ports({"KBQ_HOME": str(tmp_path)}))
    assert settings.kafka.bootstrap_servers == f"127.0.0.1:{first}"
    with socket.create_server(("127.0.0.1", first)):
        stack = on_free_ports(LocalStack(tmp_path, first, second, third), settings.local.fixed)
        fixed = on_free_ports(LocalStack(tmp_path, first, second, third), {"kafka_port"})
    assert (stack.controller_port, stack.registry_port, fixed.kafka_port) == (second, third, first)
    assert stack.kafka_port != first
    assert can_listen(stack.kafka_port)


@pytest.mark.kafka
def test_a_running_stack_keeps_its_ports_and_every_command_finds_them(
    local_stack: LocalStack, variables: Variables
) -> None:
    variables["KBQ_HOME"] = str(local_stack.home)
    for name in ("KAFKA", "CONTROLLER", "REGISTRY"):
        variables.pop(f"KBQ_LOCAL_{name}_PORT", None)
    local_stack.up()
    found = parts().deployment.settings
    assert (found.kafka.bootstrap_servers, found.registry.url) == (
        local_stack.bootstrap_servers,
        local_stack.registry_url,
    )
    assert on_free_ports(local_stack, ()) == local_stack
    variables["KBQ_LOCAL_KAFKA_PORT"] = str(free_ports(1)[0])
    kafka, _ = ports(stack_of(parts().deployment.settings))
    sentence = f"runs on port {local_stack.kafka_port}, but KBQ_LOCAL_KAFKA_PORT says"
    assert (kafka.outcome, sentence in kafka.found) == (Outcome.FAIL, True)


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
