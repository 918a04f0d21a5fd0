"""The faults that a test requests from a proxy, and the description of a request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Request:
    """A request as it left the client. ``method`` is the API's name, for example ``jobs.insert``; ``json`` its body.

    ``body_size`` counts the bytes of bodies that are no JSON too.
    """

    method: str
    verb: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body_size: int = 0


KINDS = (
    "drop_request",
    "drop_reply",
    "delay",
    "late",
    "job_error",
    "job_stuck",
    "job_rows",
)


@dataclass(frozen=True)
class Fault:
    """What happens to the next ``times`` requests of ``method`` ("" for any) for which ``when`` holds.

    Kinds: a status such as ``"503"`` is answered without forwarding, with ``reason`` as the API's error reason;
    ``drop_request`` hangs up without forwarding, ``drop_reply`` after the server has answered; ``delay`` forwards after
    ``seconds``; ``late`` hangs up and forwards later: after ``seconds``, or, for 0, when the test calls
    `Faults.deliver_late`. Of ``jobs.insert`` only: ``job_error`` takes the job and ends it with ``reason``, nothing
    loaded; ``job_stuck`` leaves it RUNNING until it is cancelled; ``job_rows`` reports one row more than it loads.
    """

    method: str
    kind: str
    when: Callable[[Request], bool] | None = None
    times: int = 1
    seconds: float = 0
    reason: str = ""

    def __post_init__(self) -> None:
        if not (self.kind.isdigit() or self.kind in KINDS):
            raise ValueError(f"no such fault: {self.kind!r}")

    def matches(self, request: Request) -> bool:
        """Whether this request is meant."""
        return self.method in ("", request.method) and (self.when is None or self.when(request))


class Faults:
    """The faults that wait for their requests; the first that matches is taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[Fault, int]] = []
        self._late: list[Callable[[], None]] = []

    def add(self, fault: Fault) -> None:
        """Arm a fault."""
        with self._lock:
            self._waiting.append((fault, fault.times))

    def clear(self) -> None:
        """Disarm all; requests that are late are never delivered."""
        with self._lock:
            self._waiting.clear()
            self._late.clear()

    def pending(self) -> int:
        """How many times the armed faults will still strike: 0 when all have."""
        with self._lock:
            return sum(times for _, times in self._waiting)

    def take(self, request: Request) -> Fault | None:
        """The fault that strikes this request."""
        with self._lock:
            for index, (fault, times) in enumerate(self._waiting):
                if fault.matches(request):
                    self._waiting[index : index + 1] = [(fault, times - 1)] if times > 1 else []
                    return fault
        return None

    def hold(self, deliver: Callable[[], None]) -> None:
        """Keep a late request until the test delivers it."""
        with self._lock:
            self._late.append(deliver)

    def deliver_late(self) -> int:
        """Deliver the requests that are held, in their order; return how many. Their replies go nowhere."""
        with self._lock:
            held, self._late = self._late, []
        for deliver in held:
            deliver()
        return len(held)
