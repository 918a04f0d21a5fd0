"""Simulates a month in Dagster's database, and measures how long its pages take in a browser (`dagster_scale`).

The newest cycle's rows are copied in order, with other runs and times: 9 GB per month. The texts of copied events keep
the original time. That does not matter: pages show the newest event, which the product writes again.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import sqlalchemy
from playwright.sync_api import Page

from kbq_assets_tests.browser.window import find_chromium, opened_browser, opened_window
from kbq_assets_tests.fixtures.local_stack import free_ports

#: Tables with rows per run, and their columns that change: the run's id, texts that contain it, and times.
_TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "runs": {
        "run_body": "text",
        "create_timestamp": "time",
        "update_timestamp": "time",
        "start_time": "seconds",
        "end_time": "seconds",
    },
    "run_tags": {},
    "event_logs": {"event": "text", "timestamp": "time"},
    "asset_check_executions": {
        "evaluation_event": "text",
        "evaluation_event_timestamp": "time",
        "create_timestamp": "time",
    },
}
_ID: Final = "md5(source.run_id || k)::uuid::text"
_EXPRESSIONS: Final = {
    "run_id": _ID,
    "text": f"replace({{column}}, source.run_id, {_ID})",
    "time": "{column} + (k * {every} - {span}) * interval '1 second'",
    "seconds": "{column} + k * {every} - {span}",
}
ROUNDS: Final = 5
#: The pages of assets. Other pages are measured too.
OF_ASSETS: Final = ("topic", "staged_files")
LOOK_MS: Final = 120_000


def fill(url: str, days: int, cycles_a_day: int) -> None:
    """Copy the newest two runs, an extraction and a load, into the last ``days``."""
    every, span = 86_400 // cycles_a_day, days * 86_400
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg2:"))
    with engine.connect() as connection:
        found = connection.execute(sqlalchemy.text("SELECT run_id FROM runs ORDER BY id DESC LIMIT 2"))
        runs = ", ".join(f"'{row[0]}'" for row in found)
        statements = [_copy(connection, table, runs, every, span) for table in _TABLES]
        connection.commit()
        for day in range(days):
            cycles = {"first": day * cycles_a_day, "last": (day + 1) * cycles_a_day - 1}
            for statement in statements:
                connection.execute(sqlalchemy.text(statement), cycles)
            connection.commit()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sqlalchemy.text("VACUUM ANALYZE"))
    engine.dispose()


def _copy(connection: sqlalchemy.Connection, table: str, runs: str, every: int, span: int) -> str:
    columns = [c["name"] for c in sqlalchemy.inspect(connection).get_columns(table) if c["name"] != "id"]
    kinds = {**_TABLES[table], "run_id": "run_id"}
    values = [
        _EXPRESSIONS[kinds[c]].format(column=f"source.{c}", every=every, span=span)
        if c in kinds
        else f"source.{c}"
        for c in columns
    ]
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)}"
        f" FROM generate_series(:first, :last) k, {table} source"
        f" WHERE source.run_id IN ({runs}) ORDER BY k, source.id"
    )


def pages(environ: Mapping[str, str], topic: str, table: str, log: Path) -> dict[str, float]:
    """Median seconds until a page shows its newest numbers, in a browser that has opened it before."""
    program = find_chromium()
    assert program, "no Chromium"
    with (
        _served(environ, log) as address,
        opened_browser(program) as browser,
        opened_window(browser, address) as window,
    ):
        looks = _looks(topic, table)
        return {name: _opened(window.page, path, look) for name, (path, look) in looks.items()}


def _looks(topic: str, table: str) -> dict[str, tuple[str, str]]:
    """Pages, and the text that is visible once they are complete."""
    entry = "xpath=//tr[td[1][normalize-space()='{}']]/td[last()]"
    return {
        "topic": (f"/assets/staged/{topic}", entry.format("lag_records")),
        "staged_files": ("/assets/staged_files", entry.format("run_records")),
        "catalog": ("/assets", f"text={table.partition('.')[2]} >> visible=true"),
        "runs": ("/runs", "text=load_job"),
    }


def _opened(page: Page, path: str, look: str) -> float:
    took = []
    for _ in range(ROUNDS + 1):
        started = time.monotonic()
        page.goto(path, wait_until="commit")
        page.locator(look).first.wait_for(timeout=LOOK_MS)
        took.append(time.monotonic() - started)
    return round(statistics.median(took[1:]), 2)


@contextmanager
def _served(environ: Mapping[str, str], log: Path) -> Iterator[str]:
    """`kbq ui --read-only`."""
    [port] = free_ports(1)
    command = [sys.executable, "-c", "from kbq_assets.definitions import main; main()", "ui", "--read-only"]
    with log.open("wb") as output:
        ui = subprocess.Popen(
            [*command, "--port", str(port)], env={**os.environ, **environ}, stdout=output, stderr=output
        )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait(lambda: address in log.read_text() or ui.poll() is not None)
        assert ui.poll() is None, log.read_text()[-3000:]
        yield address
    finally:
        ui.terminate()
        ui.wait(120)


def _wait(is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not is_there():
        assert time.monotonic() < deadline, "the UI does not answer"
        time.sleep(0.2)
