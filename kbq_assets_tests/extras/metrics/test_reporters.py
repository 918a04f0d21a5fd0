"""Metrics reach those that want them sent; one that is away, or wrong, keeps nobody else from theirs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.adapters import http
from kbq_assets.core.config.service import ReporterChoice, parse_reporters
from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.core.protocol.totals import Histogram
from kbq_assets.extras.metrics.families import GAUGE, Family, histogram, single
from kbq_assets.extras.metrics.reporters import LineReporter, open_reporter
from kbq_assets.extras.metrics.service.watch import Repeater
from kbq_assets.extras.metrics.service.watches import Watches
from kbq_assets_tests.extras.metrics.scrape import values
from kbq_assets_tests.fakes.platform import FakePlatform

FAMILIES = (single("kbq_x", GAUGE, "x", 2.5), histogram("kbq_h", "h", (1, 2), [({}, Histogram((1,), 0.5))]))
DOCUMENT = {
    "time_ms": 1_000,
    "metrics": [
        {"name": "kbq_x", "labels": {}, "value": 2.5},
        {"name": "kbq_h_sum", "labels": {}, "value": 0.5},
        {"name": "kbq_h_count", "labels": {}, "value": 1},
    ],
}


class Receiver:
    """An address that keeps what is posted to it, and answers ``status``."""

    def __init__(self) -> None:
        self.posted: list[Any] = []
        self.status = 204
        receiver = self

        class Answers(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.posted.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.server.server_port}/token-of-mine"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setattr(http, "POST_SECONDS", 300.0)  # it answers, however busy the machine is
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join(300)
    made.server.server_close()


def test_a_line_is_one_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    LineReporter().report(FAMILIES, 1_000)
    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"kbq": "metrics", **DOCUMENT}


def test_a_webhook_gets_the_same_document(receiver: Receiver) -> None:
    open_reporter(ReporterChoice("webhook", receiver.url)).report(FAMILIES, 1_000)
    assert receiver.posted == [DOCUMENT]


def test_a_webhook_s_address_may_be_a_reference(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "url").write_text(receiver.url + "\n")
    open_reporter(ReporterChoice("webhook", f"file:{tmp_path}/url")).report(FAMILIES, 1_000)
    assert len(receiver.posted) == 1


@pytest.mark.parametrize("is_there", [True, False])
def test_a_webhook_that_fails_says_so_without_its_address(receiver: Receiver, is_there: bool) -> None:
    receiver.status = 500
    url = receiver.url if is_there else "http://127.0.0.1:9/token-of-mine"
    with pytest.raises(Unavailable) as failed:
        open_reporter(ReporterChoice("webhook", url)).report(FAMILIES, 1_000)
    assert "KBQ_REPORTERS" in str(failed.value)
    assert "token-of-mine" not in str(failed.value)


@pytest.mark.parametrize("text", ["", "log,", "Log", "webhook", "webhook:", "statsd:localhost:8125"])
def test_words_that_name_no_reporter_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="KBQ_REPORTERS"):
        parse_reporters(text)


def test_what_follows_a_name_is_shown_nowhere() -> None:
    choices = parse_reporters("prometheus,webhook:https://hooks.example/secret-part")
    assert "secret-part" not in repr(choices)
    assert choices[1].target == "https://hooks.example/secret-part"


class Kept:
    """A reporter that keeps what it gets, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.reports: list[Sequence[Family]] = []
        self.reported = threading.Event()

    def report(self, families: Sequence[Family], time_ms: int) -> None:
        if self.error is not None:
            raise self.error
        self.reports.append(families)
        self.reported.set()


def test_one_that_fails_keeps_nobody_else_from_theirs_and_is_counted(tmp_path: Path) -> None:
    world = FakePlatform(tmp_path)
    watches, broken, kept = Watches(world.parts.deployment), Kept(RuntimeError("a bug")), Kept()
    for _ in range(2):
        watches.report({"broken": broken, "kept": kept})
    assert len(kept.reports) == 2
    assert values(watches.families())["kbq_failed_reports_total"] == {("broken",): 2}


def test_reports_are_sent_until_they_are_stopped(tmp_path: Path) -> None:
    world = FakePlatform(tmp_path)
    kept = Kept()
    watches = Watches(world.parts.deployment)
    reporting = Repeater("reports", lambda: watches.report({"kept": kept}), world.clock, 0.001)
    reporting.start()
    assert kept.reported.wait(300)
    reporting.stop(300)
    assert not reporting._thread.is_alive()
