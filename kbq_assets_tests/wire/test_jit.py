"""Where compiled kernels are kept, and what the wire layer loads."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.wire import jit

FOLDER = "kbq-wire-"
REPOSITORY = Path(__file__).resolve().parents[2]


def _one() -> int:
    return 1


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    jit._cache_folder.cache_clear()
    yield
    jit._cache_folder.cache_clear()


def test_the_callers_cache_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit._config, "CACHE_DIR", str(tmp_path))
    folder = jit._cache_folder()
    assert folder is not None and folder.parent == tmp_path and folder.name.startswith(FOLDER)


def test_the_folder_is_private() -> None:
    folder = jit._cache_folder()
    assert folder is not None and stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_of_another_user_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    assert not jit._is_private_and_writable(tmp_path / "cache")


def test_without_any_folder_kernels_are_compiled_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "_is_private_and_writable", lambda folder: False)
    assert jit._cache_folder() is None
    double: Any = jit.kernel(lambda number: 2 * number)
    assert double(21) == 42


def test_a_fresh_folder_starts_with_what_was_shipped(tmp_path: Path) -> None:
    shipped, folder = tmp_path / "shipped", tmp_path / "own"
    (shipped / "sub").mkdir(parents=True)
    (shipped / "sub" / "kernel.nbc").write_bytes(b"compiled")
    folder.mkdir()
    jit._copy_shipped(shipped, folder)
    assert (folder / "sub" / "kernel.nbc").read_bytes() == b"compiled"


def test_decorating_leaves_numbas_own_setting_alone() -> None:
    before = jit._config.CACHE_DIR
    jit.kernel(_one)
    assert before == jit._config.CACHE_DIR


def test_warming_up_compiles_every_kernel() -> None:
    # What a first window would compile is compiled before it: no kernel gets a second signature. In a process of its
    # own: other tests call kernels with whatever they like.
    assert _run(_WARM_AND_ENCODE).splitlines() == ["1 1 1 1 1 1 1 1"] * 2


def test_schemas_are_understood_without_numba() -> None:
    imports = "import sys, kbq_assets.wire.records.staged_schema, kbq_assets.wire.records.reasons"
    _run(f"{imports}; assert 'numba' not in sys.modules")


@pytest.mark.thorough
def test_a_second_process_loads_what_the_first_compiled(tmp_path: Path) -> None:
    script = (
        "from kbq_assets.wire.chunk import Chunk, RawRecord; from kbq_assets.wire.records import prefix;"
        "prefix.split_prefix(Chunk.from_messages([RawRecord(b'x', 0)]));"
        "print(sum(prefix._split_prefix.stats.cache_hits.values()))"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    _run(script, environment)
    assert _run(script, environment) == "1\n"


_WARM_AND_ENCODE = """
from kbq_assets.core.topics.business_time import BusinessTime
from kbq_assets.wire.warm import warm_up
from kbq_assets.wire.chunk import Chunk, RawRecord
from kbq_assets.wire.files import assemble
from kbq_assets.wire.files.encode import ValueFormat
from kbq_assets.wire.json import kernel as documents
from kbq_assets.wire.protobuf import encode as messages_
from kbq_assets.wire.records import event_time, prefix, rows_per_hour, validate
from kbq_assets.wire.records.staged_schema import MetadataColumns, json_staged_schema
from kbq_assets_tests.wire.samples import MILLIS, Sinks, staged, texts, window

kernels = [
    *(assemble._append, prefix._split_prefix, validate._validate_avro, validate._validate_json),
    *(event_time._event_times, rows_per_hour._count_hours, documents.encode_documents, messages_._encode),
]
warm_up()
print(*(len(kernel.signatures) for kernel in kernels))
metadata = MetadataColumns(key=True, headers=True, business_time=BusinessTime(("text",)))
messages = [RawRecord(value, n, MILLIS, b"k", [("h", b"1")]) for n, value in enumerate(texts(100))]
chunk = Chunk.from_messages(messages, keys=True, headers=True)
avro = window(Sinks(), {1: staged(("text", "string"), metadata=metadata)})
json = window(Sinks(), {0: json_staged_schema(metadata)}, value_format=ValueFormat.JSON)
for encoder in (avro, json):
    encoder.add(chunk)
    encoder.finish()
print(*(len(kernel.signatures) for kernel in kernels))
"""


def _run(script: str, environment: dict[str, str] | None = None) -> str:
    command = [sys.executable, "-W", "error", "-c", script]
    return subprocess.run(
        command, cwd=REPOSITORY, check=True, capture_output=True, text=True, env=environment
    ).stdout


def test_a_kernel_from_the_cache_does_not_load_the_compiler(tmp_path: Path) -> None:
    module = tmp_path / "doubling.py"
    module.write_text(
        "import sys\nfrom kbq_assets.wire.jit import kernel\n"
        "@kernel\ndef double(number: int) -> int:\n    return 2 * number\n"
        "print(double(21), 'numba.typed.dictobject' in sys.modules)\n"
    )
    environ = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, str(module)]
    runs = [subprocess.run(command, env=environ, capture_output=True, text=True, check=True) for _ in "12"]
    assert [run.stdout.split() for run in runs] == [["42", "True"], ["42", "False"]]
