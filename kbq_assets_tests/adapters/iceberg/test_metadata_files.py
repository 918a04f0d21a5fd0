"""The catalog tells which metadata file of a table is the newest."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbq_assets.adapters.iceberg.connect import open_lake
from kbq_assets.adapters.iceberg.metadata_files import IcebergMetadata
from kbq_assets.core.config.locations import LakeAddress
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.wire.arrow.staged import open_file_uri
from kbq_assets_tests.contracts.warehouse import SCHEMA, TABLE, avro_file, load_job, records


def test_each_commit_has_a_newer_file(tmp_path: Path) -> None:
    place = LakeAddress(tmp_path / "lake")
    lake = open_lake(place, tmp_path, open_file_uri)
    lake.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    shadow = TableReference(TABLE.dataset, f"_kbq_replay_7_{TABLE.table}")
    lake.create_table(shadow, columns_of(SCHEMA), TableOptions())
    metadata = IcebergMetadata(place, tmp_path)
    datasets = {TABLE.dataset, "not_there"}
    first = metadata.files(datasets)
    assert first.keys() == {TABLE}
    assert metadata.files({"not_there"}) == {}
    staged = tmp_path / "1.avro"
    staged.write_bytes(avro_file(records([1])))
    lake.insert_job(load_job("kbq-1a2b-1", staged.as_uri()))
    second = metadata.files(datasets)
    assert second.keys() == {TABLE}
    assert second != first
    stored = lake.lake.table(TABLE)
    assert stored is not None
    assert second[TABLE] == stored.metadata_location


def test_a_catalog_without_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no catalog nobodys"):
        IcebergMetadata(LakeAddress(catalog="nobodys"), tmp_path)
