"""Files of any format, as BigQuery loads or queries them: local-bigquery reads them, and the proxy enforces the rules.

KBQ's own load jobs of Avro files never come here (load_jobs.py). A load lands in a scratch table first, and moves to
its table, or to one partition of it, in one transaction. An external table of a query is a scratch table, too.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from kbq_assets_tests.google.avro_schema import Field
from kbq_assets_tests.google.reverse_proxy import Upstream
from kbq_assets_tests.google.table_rules import kind_of

#: The dataset of scratch tables in a job's project.
SCRATCH: Final = "kbq_scratch"
#: Keys of a load that local-bigquery reads files by; `sourceUris` and the table are ours.
_READING: Final = (
    "sourceFormat", "schema", "autodetect", "fieldDelimiter", "quote", "nullMarker", "skipLeadingRows", "encoding",
    "allowJaggedRows", "allowQuotedNewlines", "ignoreUnknownValues", "maxBadRecords", "hivePartitioningOptions",
    "useAvroLogicalTypes", "decimalTargetTypes",
)  # fmt: skip
#: How BigQuery names partitions, by the length of their names.
_UNITS: Final = {4: "%Y", 6: "%Y%m", 8: "%Y%m%d", 10: "%Y%m%d%H"}


def is_kbqs_own(load: Mapping[str, Any]) -> bool:
    """Whether this is a load job of staged files, which is judged more strictly."""
    return load.get("sourceFormat") == "AVRO" and load.get("createDisposition") == "CREATE_NEVER"


class NotLoaded(Exception):
    """The job ends with this error."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class BucketFiles:
    """Files of a bucket as tables of local-bigquery."""

    def __init__(self, upstream: Upstream, gcs: Upstream, folder: Path) -> None:
        self._upstream, self._gcs, self._folder = upstream, gcs, folder

    def load(self, project: str, load: Mapping[str, Any]) -> int:
        """Append the rows of a load job's files, or put them in the place of others; return how many they are. Raises
        NotLoaded, one of `LOST`."""
        target = dict(load["destinationTable"])
        target["tableId"], _, partition = str(target["tableId"]).partition("$")
        table = self._target(target, load)
        fields: list[Field] = table["schema"]["fields"]
        reading = {"schema": {"fields": fields}, **{key: load[key] for key in _READING if key in load}}
        scratch = self._scratch(project, load["sourceUris"], reading)
        try:
            return self._move(
                project, scratch, table, partition, load.get("writeDisposition", "WRITE_APPEND")
            )
        finally:
            self._upstream.call("DELETE", _path_of(scratch))

    def query(self, project: str, query: Mapping[str, Any]) -> str:
        """The text of a query, whose external tables have become tables. Raises NotLoaded, one of `LOST`."""
        text = str(query["query"])
        for name, definition in query["tableDefinitions"].items():
            options = {**definition, **definition.get("csvOptions", {})}
            reading = {key: options[key] for key in _READING if key in options}
            scratch = self._scratch(project, definition["sourceUris"], reading)
            text = re.sub(rf"\b{re.escape(name)}\b", _name_of(scratch), text)
        return text

    def _target(self, target: Mapping[str, str], load: Mapping[str, Any]) -> dict[str, Any]:
        status, table = self._upstream.call("GET", _path_of(target))
        if status == 200:
            return dict(table)
        if load.get("createDisposition") == "CREATE_NEVER" or not load.get("schema"):
            raise NotLoaded("notFound", f"Not found: Table {_label(target)}")
        layout = {key: load[key] for key in ("timePartitioning", "clustering", "schema") if key in load}
        status, table = self._upstream.call(
            "POST", _path_of(target).rpartition("/")[0], {"tableReference": dict(target), **layout}
        )
        if status != 200:
            raise NotLoaded("notFound", f"{_label(target)} cannot be created: {table}")
        return dict(table)

    def _scratch(self, project: str, uris: Sequence[str], reading: Mapping[str, Any]) -> dict[str, str]:
        """A new table of the files' rows."""
        datasets = f"/bigquery/v2/projects/{project}/datasets"
        self._upstream.call(
            "POST", datasets, {"datasetReference": {"projectId": project, "datasetId": SCRATCH}}
        )
        scratch = {"projectId": project, "datasetId": SCRATCH, "tableId": f"s{uuid.uuid4().hex}"}
        folder = self._folder / scratch["tableId"]
        files = [f"file://{self._fetch(folder, bucket, name)}" for bucket, name in self._objects(uris)]
        load = {**reading, "sourceUris": files, "destinationTable": scratch}
        self._run(project, {"load": load})
        return scratch

    def _objects(self, uris: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Bucket and name of each object that URIs name, or match."""
        for uri in uris:
            bucket, _, name = uri.removeprefix("gs://").partition("/")
            if "*" not in name:
                yield bucket, name
                continue
            prefix = quote(name.partition("*")[0], safe="")
            _, listed = self._gcs.call("GET", f"/storage/v1/b/{bucket}/o?prefix={prefix}")
            found = [
                item["name"] for item in listed.get("items", ()) if fnmatch.fnmatchcase(item["name"], name)
            ]
            if not found:
                raise NotLoaded("notFound", f"Not found: URI {uri}")
            yield from ((bucket, each) for each in found)

    def _fetch(self, folder: Path, bucket: str, name: str) -> Path:
        data = self._gcs.read(f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}?alt=media")
        if data is None:
            raise NotLoaded("notFound", f"Not found: URI gs://{bucket}/{name}")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def _move(
        self, project: str, scratch: Mapping[str, str], table: Mapping[str, Any], partition: str, write: str
    ) -> int:
        """Move all rows in one step. Fails if rows belong to another partition than the load names."""
        target, source = _name_of(table["tableReference"]), _name_of(scratch)
        condition = _in_partition(table, partition)
        [(rows, others)] = self._rows(
            project, f"SELECT COUNT(*), COUNTIF(NOT IFNULL({condition}, FALSE)) FROM {source}"
        )
        if int(others):
            raise NotLoaded(
                "invalid",
                f"Some rows belong to different partitions rather than destination partition"
                f" {_label(table['tableReference'])}${partition}",
            )
        columns = ", ".join(f"`{field['name']}`" for field in table["schema"]["fields"])
        insert = f"INSERT INTO {target} ({columns}) SELECT {columns} FROM {source}"
        delete = f"DELETE FROM {target} WHERE {condition}; " if write == "WRITE_TRUNCATE" else ""
        self._run(
            project,
            {
                "query": {
                    "query": f"BEGIN TRANSACTION; {delete}{insert}; COMMIT TRANSACTION",
                    "useLegacySql": False,
                }
            },
        )
        return int(rows)

    def _rows(self, project: str, sql: str) -> list[tuple[Any, ...]]:
        body = {"query": sql, "useLegacySql": False}
        status, answer = self._upstream.call("POST", f"/bigquery/v2/projects/{project}/queries", body)
        if status != 200:
            raise NotLoaded("invalid", str(answer))
        return [tuple(cell["v"] for cell in row["f"]) for row in answer["rows"]]

    def _run(self, project: str, configuration: Mapping[str, Any]) -> None:
        """Run a job of local-bigquery, invisible to clients, to its end."""
        jobs, inner = f"/bigquery/v2/projects/{project}/jobs", f"inner-{uuid.uuid4().hex}"
        status, document = self._upstream.call(
            "POST",
            jobs,
            {"jobReference": {"projectId": project, "jobId": inner}, "configuration": configuration},
        )
        for pause in itertools.chain([0.01] * 10, itertools.repeat(0.05)):
            if status != 200 or document["status"]["state"] == "DONE":
                break
            time.sleep(pause)
            status, document = self._upstream.call("GET", f"{jobs}/{inner}")
        error = document["status"].get("errorResult") if status == 200 else document["error"]
        if error:
            raise NotLoaded(error.get("reason", "invalid"), error["message"])


def _in_partition(table: Mapping[str, Any], partition: str) -> str:
    """The condition of a partition's rows, TRUE for the whole table."""
    if not partition:
        return "TRUE"
    column = (table.get("timePartitioning") or {}).get("field")
    if not column:
        raise NotLoaded("invalid", f"{_label(table['tableReference'])} is not partitioned by a column")
    kinds = {field["name"].casefold(): kind_of(field) for field in table["schema"]["fields"]}
    function = "FORMAT_DATE" if kinds[column.casefold()] == "DATE" else "FORMAT_TIMESTAMP"
    return f"{function}('{_UNITS[len(partition)]}', `{column}`) = '{partition}'"


def _name_of(reference: Mapping[str, str]) -> str:
    return "`{projectId}.{datasetId}.{tableId}`".format(**reference)


def _path_of(reference: Mapping[str, str]) -> str:
    return "/bigquery/v2/projects/{projectId}/datasets/{datasetId}/tables/{tableId}".format(**reference)


def _label(reference: Mapping[str, str]) -> str:
    return "{projectId}:{datasetId}.{tableId}".format(**reference)
