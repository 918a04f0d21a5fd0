"""Checks of the local stack, for `kbq doctor`."""

from __future__ import annotations

from collections.abc import Iterator

from kbq_assets.adapters.processes.loopback_ports import can_listen, holder_of
from kbq_assets.core.config.settings import Settings
from kbq_assets.extras.doctor.check import Check, Outcome
from kbq_assets.extras.doctor.cli import LocalServices
from kbq_assets.local.stack import LocalStack, ServiceState
from kbq_assets.local.stack.cli import stack_of


def local_services(settings: Settings) -> LocalServices:
    """The addresses of the local stack, and checks of its ports."""
    stack = stack_of(settings)
    return LocalServices(stack.bootstrap_servers, stack.registry_url, lambda: ports(stack))


def ports(stack: LocalStack) -> Iterator[Check]:
    """Checks that the local stack's ports are free or in use by the stack itself."""
    for service in stack.status():
        name, address = f"local {service.service}", f"port {service.port}"
        if service.state is ServiceState.RUNNING:
            outcome = Outcome.OK if service.healthy else Outcome.FAIL
            found = f"runs on {address} (process {service.pid}) {service.problem}".rstrip()
            yield Check(name, outcome, found, "" if service.healthy else f"see {service.log}")
        elif can_listen(service.port):
            yield Check(name, Outcome.OK, f"not running; {address} is free")
        else:
            fix = f"kbq local up takes another one, unless KBQ_LOCAL_{service.service.upper()}_PORT sets it"
            yield Check(name, Outcome.WARN, f"{address} is taken by {holder_of(service.port)}", fix)
