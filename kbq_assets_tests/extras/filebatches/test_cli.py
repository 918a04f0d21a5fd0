"""`kbq files` over a folder and a DuckDB file, as docs/file-batches.md shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner, Result

from kbq_assets.core.config.settings import parse_settings
from kbq_assets.definitions import command_line, parts


class Installation:
    """KBQ with a folder of batches, and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.arrivals = folder / "arrivals"
        self.environ = {"KBQ_HOME": str(folder / "home"), "KBQ_FILES": str(self.arrivals)}
        self.put("_config/load.json", '{"sourceFormat": "CSV", "autodetect": true, "skipLeadingRows": 1}')

    def put(self, path: str, text: str = "") -> None:
        (self.arrivals / path).parent.mkdir(parents=True, exist_ok=True)
        (self.arrivals / path).write_text(text)

    def batch(self, path: str, text: str) -> None:
        self.put(f"{path}/part-0.csv", text)
        self.put(f"{path}/_SUCCESS")

    def __call__(self, *args: str) -> Result:
        result = CliRunner().invoke(command_line(), ["files", *args], obj=lambda: parts(self.environ))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("status", "--json").stdout)
        return found

    def rows(self) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(Path(self.environ["KBQ_HOME"], "warehouse.duckdb")), read_only=True) as db:
            return db.execute("SELECT * FROM shop.orders ORDER BY 1").fetchall()


@pytest.fixture
def kbq(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


def test_a_batch_is_applied_once_and_shown(kbq: Installation) -> None:
    kbq.batch("shop/orders/2026-01-05", "id,amount\n1,9.50\n2,3.20\n")
    waiting = kbq("status")
    assert waiting.exit_code == 0 and "ready: shop/orders/2026-01-05" in waiting.stdout
    for _ in range(2):
        assert kbq("run").exit_code == 0
    assert kbq.rows() == [(1, 9.5), (2, 3.2)]
    [table] = kbq.document()["tables"]
    assert (table["total"], table["batches"], table["last"]["path"]) == (2, [], "shop/orders/2026-01-05")


def test_a_failed_batch_is_retried_or_skipped(kbq: Installation) -> None:
    kbq.put("shop/orders/_config/ORDERME")
    kbq.batch("shop/orders/1", "id,amount\n1,9.50\n")
    kbq.batch("shop/orders/2", "id,amount\nx,y,z\n")
    kbq.batch("shop/orders/3", "id,amount\nq,r\n")
    failed = kbq("run")
    assert failed.exit_code == 1
    assert "failed: shop/orders/2" in failed.stdout and "waits: shop/orders/3" in failed.stdout
    assert "next: kbq files retry shop/orders --batch shop/orders/2" in failed.stdout
    kbq.put("shop/orders/2/part-0.csv", "id,amount\n2,1.25\n")
    assert kbq("retry", "shop/orders", "--batch", "shop/orders/2", "--yes").exit_code == 0
    assert kbq("run").exit_code == 1
    skip = ("skip", "shop/orders", "--batch", "shop/orders/3", "--reason", "by hand")
    assert kbq(*skip, "--yes").exit_code == 0
    assert kbq("run").exit_code == 0 and kbq.rows() == [(1, 9.5), (2, 1.25)]
    decisions = kbq("status", "--decisions").stdout
    assert "retry shop/orders/2" in decisions and "skip shop/orders/3" in decisions and "by hand" in decisions


def test_what_cannot_be_used_is_named(kbq: Installation, tmp_path: Path) -> None:
    kbq.batch("lonely", "id\n1\n")
    kbq.batch("shop/orders/1", "id\n1\n")
    kbq.put("shop/orders/_config/load.json", '{"maxBadRecords": 5}')
    shown = kbq("run")
    assert shown.exit_code == 1
    assert (
        "lonely" in shown.stdout
        and "blocked: shop/orders/1" in shown.stdout
        and "maxBadRecords" in shown.stdout
    )
    kbq.environ["KBQ_FILES"] = str(tmp_path / "home" / "staging")
    assert "KBQ_FILES is the staging area" in str(kbq("status").stderr)
    kbq.environ["KBQ_FILES"] = str(tmp_path / "arivals")
    for command in ("run", "status"):
        missing = kbq(command)
        assert missing.exit_code == 1 and f"{tmp_path / 'arivals'} does not exist" in missing.stderr
    del kbq.environ["KBQ_FILES"]
    unset = kbq("status")
    assert unset.exit_code == 1 and "KBQ_FILES is not set" in unset.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KBQ_FILES", "s3://bucket"),
        ("KBQ_FILES_ORDER_PER_TABLE", "maybe"),
        ("KBQ_FILES_DESTINATION_REGEX", "("),
        ("KBQ_FILES_SUCCESS_FILENAME", "a/b"),
        ("KBQ_FILES_ON_LATE", "ignore"),
    ],
)
def test_a_bad_setting_is_refused_by_name(kbq: Installation, name: str, value: str) -> None:
    kbq.environ[name] = value
    refused = kbq("status")
    assert refused.exit_code == 1 and name in refused.stderr


def test_flags_are_written_as_googles_tool_takes_them(kbq: Installation) -> None:
    kbq.environ["KBQ_FILES_ORDER_PER_TABLE"] = "True"
    assert parse_settings(kbq.environ).extras.files.order_per_table


def test_batches_are_applied_again_from_one_on(kbq: Installation) -> None:
    kbq.put("shop/orders/_config/ORDERME")
    for number in (1, 2):
        kbq.batch(f"shop/orders/{number}", f"id,amount\n{number},9.50\n")
    assert kbq("run").exit_code == 0
    found = kbq("again", "shop/orders", "--from", "shop/orders/2", "--reason", "corrected", "--yes")
    assert found.exit_code == 0 and "1 batch again, from shop/orders/2" in found.output
    assert kbq("run").exit_code == 0 and [id for id, _ in kbq.rows()] == [1, 2, 2]
    assert kbq("again", "shop/orders", "--from", "z", "--reason", "x", "--yes").exit_code != 0


def test_a_batch_is_not_applied_without_a_file_whose_name_kbq_cannot_use(kbq: Installation) -> None:
    kbq.batch("shop/orders/1", "id\n1\n")
    kbq.put("shop/orders/1/part\u00a01.csv", "id\n2\n")
    kbq.batch("shop/or\u00a0ders/1", "id\n3\n")
    kbq.batch("shop/orders/2", "id\n4\n")
    failed = kbq("run")
    assert failed.exit_code == 1
    assert "failed: shop/orders/1" in failed.stdout and "part\\xa01.csv" in failed.stdout
    assert "or\\xa0ders" in failed.stdout
    assert kbq.rows() == [(4,)]
    (kbq.arrivals / "shop/orders/1/part\u00a01.csv").rename(kbq.arrivals / "shop/orders/1/part-1.csv")
    assert kbq("retry", "shop/orders", "--batch", "shop/orders/1", "--yes").exit_code == 0
    kbq("run")
    assert kbq.rows() == [(1,), (2,), (4,)]


@pytest.mark.parametrize("target", ["elsewhere", "nowhere", "part"])
def test_a_batch_is_not_applied_without_what_a_link_leads_to(kbq: Installation, target: str) -> None:
    (kbq.arrivals.parent / "elsewhere").mkdir()
    (kbq.arrivals.parent / "elsewhere/2.csv").write_text("id\n2\n")
    kbq.batch("shop/orders/1", "id\n1\n")
    link = kbq.arrivals / "shop/orders/1/part"
    link.symlink_to(kbq.arrivals.parent / target if target != "part" else link)
    kbq.batch("shop/orders/2", "id\n4\n")
    failed = kbq("run")
    assert failed.exit_code == 1
    assert "failed: shop/orders/1" in failed.stdout and "only links to files" in failed.stdout
    assert kbq.rows() == [(4,)]
    link.unlink()
    link.symlink_to(kbq.arrivals.parent / "elsewhere/2.csv")
    assert kbq("retry", "shop/orders", "--batch", "shop/orders/1", "--yes").exit_code == 0
    assert kbq("run").exit_code == 0
    assert kbq.rows() == [(1,), (2,), (4,)]


def test_a_batch_is_not_applied_without_a_configuration_to_which_a_link_leads(kbq: Installation) -> None:
    (kbq.arrivals / "shop/orders").mkdir(parents=True)
    (kbq.arrivals / "shop/orders/_config").symlink_to(kbq.arrivals / "_config")
    kbq.batch("shop/orders/1", "id\n1\n")
    blocked = kbq("run")
    assert blocked.exit_code == 1
    assert "shop/orders/_config is a file or a link" in blocked.stdout
    (kbq.arrivals / "shop/orders/_config").unlink()
    assert kbq("run").exit_code == 0 and kbq.rows() == [(1,)]
