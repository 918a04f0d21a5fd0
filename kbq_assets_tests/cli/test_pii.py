"""`kbq pii`: keys are readable only by their owner, rotate without loss, and open sealed values."""

from __future__ import annotations

import base64
import dataclasses
import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kbq_assets.cli.context import ExitCode
from kbq_assets.core.config.parts import PiiSettings
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.personal import parse_keys
from kbq_assets.definitions import command_line
from kbq_assets.ports.warehouse import ErrorRow
from kbq_assets.wire.chunk import Chunk, RawRecord
from kbq_assets.wire.privacy.sealed_rows import seal_row
from kbq_assets.wire.privacy.sealing import parse_seal_key
from kbq_assets_tests.cli.conftest import Shell


def kbq_pii(*args: str, answer: str | bytes | None = None) -> Result:
    return CliRunner().invoke(command_line(), ["pii", *args], obj=lambda: None, input=answer)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "seal-2026.key"
    assert kbq_pii("keygen", str(path)).exit_code == 0
    return path


def sealed_line(key: Path, offset: int = 4711) -> str:
    public = parse_seal_key(key.with_name(f"{key.name}.pub").read_text())
    message = RawRecord(b"\xff\x00", 4711, key="Ada ü".encode(), headers=[("h", None)])
    chunk = Chunk.from_messages([message], keys=True, headers=True)
    value = base64.b64encode(seal_row(chunk, 0, public, "t", 3)).decode()
    place = {"topic": "t", "partition": 3, "offset": offset}
    return json.dumps({**place, "reason": "WRONG_MAGIC", "value_base64": value})


def test_a_private_key_is_its_owner_s_alone_and_never_overwritten(key: Path) -> None:
    public = key.with_name("seal-2026.key.pub")
    assert mode(key) == 0o600
    assert json.loads(public.read_text())["id"] == "seal-2026"
    before = key.read_text()
    result = kbq_pii("keygen", str(key))
    assert (result.exit_code, key.read_text()) == (ExitCode.REFUSED, before)
    assert "already exists" in result.stderr


def test_rows_from_anywhere_are_opened(key: Path, run: Shell) -> None:
    row = json.loads(sealed_line(key))
    as_bigquery = {
        "_kafka_topic": "t",
        "_kafka_partition": "3",
        "_kafka_offset": "4711",
        "value": row["value_base64"],
    }
    plain = {**row, "value_base64": base64.b64encode(b"not sealed").decode()}
    lines = "\n".join(map(json.dumps, ([row], as_bigquery, plain)))
    result = run("pii", "open", "--key", str(key), "--stdin", answer=lines)
    assert result.exit_code == 0, result.output
    place = {"topic": "t", "partition": 3, "offset": 4711}
    record = {"key": "Ada ü", "value_base64": "/wA=", "headers": [{"key": "h", "value": None}]}
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {**place, "reason": "WRONG_MAGIC", **record},
        {**place, **record},
    ]


def test_what_does_not_open_is_reported_and_the_rest_goes_on(key: Path, tmp_path: Path, run: Shell) -> None:
    lines = f"{sealed_line(key, offset=1)}\n{sealed_line(key)}\n"
    result = run("pii", "open", "--key", str(key), "--stdin", answer=lines)
    assert result.exit_code == 1
    assert "t/3 offset 1: it does not open" in result.stderr
    assert json.loads(result.stdout)["offset"] == 4711
    other = tmp_path / "other.key"
    kbq_pii("keygen", str(other))
    result = run("pii", "open", "--key", str(other), "--stdin", answer=lines)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "sealed for the key 'seal-2026'" in result.stderr


@pytest.mark.parametrize("line", ["nonsense", "[5]", '{"value_base64": "%"}'])
def test_a_line_that_is_no_row_is_refused(key: Path, run: Shell, line: str) -> None:
    result = run("pii", "open", "--key", str(key), "--stdin", answer=line)
    assert result.exit_code == 1
    assert "line 1 is not an error row" in result.stderr


def test_sealed_rows_of_the_warehouse_are_opened(key: Path, run: Shell) -> None:
    row = json.loads(sealed_line(key))
    value = base64.b64decode(row["value_base64"])
    stored = ErrorRow("t", 3, 4711, 1, 0, "WRONG_MAGIC", "why", None, None, value, len(value), ())
    run.world.warehouse.error_rows = lambda table, query: (stored,)  # type: ignore[method-assign]
    run.world.warehouse.tables = lambda: (TableReference("d", "kbq_errors"),)  # type: ignore[method-assign]
    [opened] = [json.loads(line) for line in run.done("pii", "open", "--key", str(key)).splitlines()]
    assert (opened["offset"], opened["reason"], opened["key"]) == (4711, "WRONG_MAGIC", "Ada ü")
    assert "sealed: kbq pii open --key FILE --topic t" in run.done("errors", "show", "t", "3", "4711")


def test_a_warehouse_without_sealed_rows_prints_nothing(key: Path, run: Shell) -> None:
    assert run.done("pii", "open", "--key", str(key)) == ""
    assert "not a private key" in run("pii", "open", "--key", f"{key}.pub").stderr


def test_a_new_key_is_current_and_old_ones_stay(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    for name in ("2025", "2026"):
        assert kbq_pii("new-key", str(file), "--id", name).exit_code == 0
    keys = parse_keys(file.read_text())
    assert (keys.current, list(keys.keys), mode(file)) == ("2026", ["2025", "2026"], 0o600)
    assert len(set(keys.keys.values())) == 2
    before = file.read_text()
    for wrong in ("2026", "a.b"):
        assert kbq_pii("new-key", str(file), "--id", wrong).exit_code == 1
    assert file.read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["keys.json"]


def test_a_person_s_pseudonyms_under_every_key(tmp_path: Path, run: Shell) -> None:
    file = tmp_path / "keys.json"
    for name in ("2025", "2026"):
        kbq_pii("new-key", str(file), "--id", name)
    run.world.settings = dataclasses.replace(run.world.settings, pii=PiiSettings(f"file:{file}"))
    keys = parse_keys(file.read_text())
    expected = {name: keys.of("customer", b"me@example.com", name) for name in keys.keys}
    result = run("pii", "pseudonym", "--context", "customer", "--json", answer="me@example.com\n")
    assert json.loads(result.stdout) == expected
    result = run("pii", "pseudonym", "--context", "customer", answer="me@example.com")
    assert result.stdout.split() == list(expected.values())


def test_without_keys_there_are_no_pseudonyms(run: Shell) -> None:
    assert "set KBQ_PII_KEYS" in run("pii", "pseudonym", "--context", "c", answer="x").stderr
