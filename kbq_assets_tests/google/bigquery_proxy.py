"""BigQuery's side of the proxy, which enforces BigQuery's rules that local-bigquery does not.

Load jobs never reach local-bigquery as load jobs (load_jobs.py). Queries and tables do, with these corrections: a job
id can be used only once per project and location; a job is found only in its location; a patch may not change a
field's type or make it REQUIRED, and nested fields are really added.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from kbq_assets_tests.google.bigquery_methods import METHODS
from kbq_assets_tests.google.bucket_files import NotLoaded, is_kbqs_own
from kbq_assets_tests.google.faults import Fault
from kbq_assets_tests.google.ledger import JobKey, Ledger, new_job, shown
from kbq_assets_tests.google.load_jobs import LoadJobs
from kbq_assets_tests.google.permissions import NEEDS, SET_CATEGORY, denied_message
from kbq_assets_tests.google.reverse_proxy import Exchange, Reply, Upstream
from kbq_assets_tests.google.table_rules import (
    expiration_objection,
    has_tags,
    inherit,
    kind_of,
    mode_of,
    patch_objection,
    size_objection,
    tag_objection,
)

MAX_URIS = 10_000
WRITES = ("WRITE_APPEND", "WRITE_TRUNCATE")
_REASONS = {
    400: "invalid",
    401: "authError",
    403: "accessDenied",
    404: "notFound",
    409: "duplicate",
    412: "conditionNotMet",
    429: "rateLimitExceeded",
    500: "internalError",
    502: "badGateway",
    503: "backendError",
    504: "gatewayTimeout",
}


class Refused(Exception):
    """The API answers with an error; nothing was done."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.reply = refused(status, reason, message)


def refused(status: int, reason: str, message: str) -> Reply:
    """BigQuery's form of an error."""
    error = {"reason": reason, "message": message, "domain": "global"}
    return Reply.of_json(status, {"error": {"code": status, "message": message, "errors": [error]}})


class BigQueryJudge:
    """Answers BigQuery's requests. ``denied`` are permissions that callers lack."""

    def __init__(self, upstream: Upstream, gcs: Upstream, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._upstream, self._gcs = upstream, gcs
        self.ledger = Ledger(folder / "jobs.sqlite")
        self.loads = LoadJobs(upstream, gcs, self.ledger, folder / "landing")
        self.strict_ids = True
        self.denied: set[str] = set()
        self._creating = threading.Lock()
        #: Default expirations of datasets, which local-bigquery does not know.
        self._defaults: dict[str, dict[str, str]] = {}
        #: A project without billing: no expiration can be removed.
        self.sandbox = False
        self._answers = {
            "datasets.insert": self._create_dataset,
            "jobs.get": self._get_job,
            "jobs.cancel": self._cancel_job,
            "jobs.query": self._query,
            "jobs.getQueryResults": self._in_its_location,
            "tables.get": self._one_at_a_time,
            "tables.insert": self._create_table,
            "tables.patch": self._change_table,
            "tables.update": self._change_table,
            "tables.testIamPermissions": self._test_permissions,
        }

    def method(self, verb: str, path: str, query: Mapping[str, str]) -> str:
        """Example: ``jobs.insert``."""
        return next((name for v, pattern, name in METHODS if v == verb and pattern.fullmatch(path)), "")

    def refusal(self, status: int, reason: str) -> Reply:
        """An injected error."""
        return refused(status, reason or _REASONS[status], "injected by the test")

    def hang_up(self) -> None:
        """Let go of the servers."""
        self._upstream.hang_up()
        self._gcs.hang_up()

    def answer(self, exchange: Exchange, fault: Fault | None = None) -> Reply:
        """BigQuery's answer."""
        request = exchange.request
        needed = NEEDS.get(request.method, "")
        if needed in self.denied:
            return refused(403, "accessDenied", "Access Denied: " + denied_message(needed, request.path))
        try:
            if request.method in ("tables.insert", "tables.patch", "tables.update"):
                self._check_fields(exchange)
            if request.method == "jobs.insert":
                return self._insert_job(exchange, fault)
            return self._answers.get(request.method, self._upstream.forward)(exchange)
        except Refused as refusal:
            return refusal.reply

    def recover(self) -> None:
        """After the server came back: end what its death cut off. A query it does not know was never inserted."""
        self.loads.settle()
        for key in self.ledger.unfinished():
            if "load" in self.ledger.configuration(key):
                continue  # held by the test
            status, job = self._upstream.call("GET", f"/bigquery/v2/projects/{key.project}/jobs/{key.job_id}")
            if status != 200:
                self.ledger.remove(key)
            elif job["status"]["state"] == "DONE":
                self.ledger.update(key, **_located(job, key))
            else:
                error = {"reason": "backendError", "message": "The job was cut off. Try again"}
                self.ledger.update(key, status={"state": "DONE", "errorResult": error, "errors": [error]})
        self.hang_up()

    def close(self) -> None:
        """Let go of everything."""
        self.loads.close()
        self.ledger.close()

    def _insert_job(self, exchange: Exchange, fault: Fault | None = None) -> Reply:
        body = exchange.request.json
        if body is None or "jobId" not in body.get("jobReference", {}):
            return self._upstream.forward(exchange)  # an upload, or a dry run
        configuration = body["configuration"]
        load = configuration.get("load")
        if load is not None:
            _check_load(load)
        key = self._key(exchange, body["jobReference"])
        if load is not None:
            self._check_dataset(load["destinationTable"], key.location)
        document = new_job(key, configuration)
        if not self.ledger.enter(key, document, self.strict_ids):
            raise Refused(409, "duplicate", f"Already Exists: Job {key}")
        if "tableDefinitions" in configuration.get("query", {}):
            return self._run_over_files(exchange, key)
        if load is None:
            return self._run_query(exchange, key)
        document = self.ledger.update(key, status={"state": "RUNNING"})
        self.loads.start(key, load, fault)
        return Reply.of_json(200, document)

    def _run_query(self, exchange: Exchange, key: JobKey) -> Reply:
        reply = self._upstream.forward(exchange)
        if reply.status == 409 and not self.strict_ids:
            return Reply.of_json(200, self.ledger.document(key))
        document = reply.json()
        if reply.status != 200:
            self.ledger.remove(key)
            return Reply.of_json(reply.status, document)
        return Reply.of_json(200, self._kept(key, document))

    def _run_over_files(self, exchange: Exchange, key: JobKey) -> Reply:
        """A query of external tables: its files become tables first."""
        body = exchange.request.json
        query = dict(body["configuration"]["query"])
        try:
            query["query"] = self.loads.files.query(key.project, query)
        except NotLoaded as error:
            failure = {"reason": error.reason, "message": str(error)}
            ended = {"state": "DONE", "errorResult": failure, "errors": [failure]}
            return Reply.of_json(200, self.ledger.update(key, status=ended))
        del query["tableDefinitions"]
        reported = {**body, "configuration": {**body["configuration"], "query": query}}
        return self._run_query(replace(exchange, body=json.dumps(reported).encode()), key)

    def _kept(self, key: JobKey, answer: dict[str, Any]) -> dict[str, Any]:
        """The job as the ledger has it after an answer of local-bigquery. A query of files stays as it was sent."""
        own = self.ledger.configuration(key)
        parts = _located(answer, key)
        if "tableDefinitions" in own.get("query", {}):
            parts["configuration"] = own
        return self.ledger.update(key, **parts)

    def _get_job(self, exchange: Exchange) -> Reply:
        project, job_id = _project(exchange), unquote(exchange.request.path.rsplit("/", 1)[1])
        key = self._found(exchange, project, job_id)
        if "load" in self.ledger.configuration(key) or self.ledger.is_done(key):
            return Reply.of_json(200, self.ledger.document(key))
        reply = self._upstream.forward(exchange)
        if reply.status != 200:
            return reply
        return Reply.of_json(200, self._kept(key, reply.json()))

    def _cancel_job(self, exchange: Exchange) -> Reply:
        project, job_id = _project(exchange), unquote(exchange.request.path.split("/")[-2])
        key = self._found(exchange, project, job_id)
        if "load" not in self.ledger.configuration(key):
            return self._upstream.forward(exchange)
        self.loads.cancel(key)
        job = self.ledger.document(key)
        return Reply.of_json(200, {"kind": "bigquery#jobCancelResponse", "job": job})

    def _query(self, exchange: Exchange) -> Reply:
        """jobs.query chooses the job's id itself; it is taken like any other."""
        reply = self._upstream.forward(exchange)
        if reply.status != 200:
            return reply
        document = reply.json()
        location = str(exchange.request.json.get("location") or "US")
        if job_id := document.get("jobReference", {}).get("jobId"):
            key = JobKey(_project(exchange), location.lower(), job_id)
            self.ledger.enter(key, new_job(key, {"query": {}}))
            document["jobReference"]["location"] = document["location"] = shown(location)
        return Reply.of_json(200, document)

    def _in_its_location(self, exchange: Exchange) -> Reply:
        job_id = unquote(exchange.request.path.rsplit("/", 1)[1])
        self._found(exchange, _project(exchange), job_id)
        return self._upstream.forward(exchange)

    def _one_at_a_time(self, exchange: Exchange) -> Reply:
        """local-bigquery answers 400 to one of two who create a dataset, and shows a table that is being created
        without its columns.
        """
        with self._creating:
            return self._upstream.forward(exchange)

    def _create_dataset(self, exchange: Exchange) -> Reply:
        body = exchange.request.json or {}
        names = [name for name in body if name.startswith("default") and name.endswith("ExpirationMs")]
        path = f"{exchange.request.path}/{body.get('datasetReference', {}).get('datasetId')}"
        self._defaults[path] = {name: str(body[name]) for name in names}
        return self._one_at_a_time(exchange)

    def _create_table(self, exchange: Exchange) -> Reply:
        """A new table inherits what it does not say itself."""
        body = dict(exchange.request.json or {})
        defaults = self._defaults.get(exchange.request.path.removesuffix("/tables"), {})
        inherit(body, defaults, int(time.time() * 1000))
        raw = json.dumps(body).encode()
        return self._one_at_a_time(replace(exchange, body=raw))

    def _check_fields(self, exchange: Exchange) -> None:
        """local-bigquery keeps any policy tag of anybody's, and as many fields as it gets."""
        fields = ((exchange.request.json or {}).get("schema") or {}).get("fields") or []
        if has_tags(fields) and SET_CATEGORY in self.denied:
            message = denied_message(SET_CATEGORY, exchange.request.path)
            raise Refused(403, "accessDenied", f"Access Denied: {message}")
        if objection := tag_objection(fields) or size_objection(fields):
            raise Refused(400, "invalid", objection)

    def _change_table(self, exchange: Exchange) -> Reply:
        body = exchange.request.json or {}
        if self.sandbox and {"expirationTime", "timePartitioning"} & body.keys():
            raise Refused(403, "billingNotEnabled", "Billing has not been enabled for this project.")
        if objection := expiration_objection(body):
            raise Refused(400, "invalid", objection)
        wanted = ((exchange.request.json or {}).get("schema") or {}).get("fields")
        status, table = self._upstream.call("GET", exchange.request.path)
        if not wanted or status != 200:
            return self._upstream.forward(exchange)
        present = table.get("schema", {}).get("fields", [])
        reference = table["tableReference"]
        if objection := patch_objection(present, wanted):
            label = "{projectId}:{datasetId}.{tableId}".format(**reference)
            raise Refused(400, "invalid", f"Provided Schema does not match Table {label}. {objection}")
        reply = self._upstream.forward(exchange)
        if reply.status == 200:
            self._widen(reference, present, wanted)
            return Reply.of_json(*self._upstream.call("GET", exchange.request.path))
        return reply

    def _widen(self, reference: Mapping[str, str], present: list[Any], wanted: list[Any]) -> None:
        """local-bigquery adds top-level fields only: give records that have grown their whole new type."""
        old = {field["name"].casefold(): standard_type(field) for field in present}
        for field in wanted:
            before, after = old.get(field["name"].casefold()), standard_type(field)
            if before is None or before == after:
                continue
            name = "`{projectId}.{datasetId}.{tableId}`".format(**reference)
            sql = f"ALTER TABLE {name} ALTER COLUMN `{field['name']}` SET DATA TYPE {after}"
            path = f"/bigquery/v2/projects/{reference['projectId']}/queries"
            status, answer = self._upstream.call("POST", path, {"query": sql, "useLegacySql": False})
            if status != 200:
                raise Refused(501, "notImplemented", f"the local server cannot widen {name}: {answer}")

    def _test_permissions(self, exchange: Exchange) -> Reply:
        asked = exchange.request.json.get("permissions", [])
        return Reply.of_json(200, {"permissions": [name for name in asked if name not in self.denied]})

    def _key(self, exchange: Exchange, reference: Mapping[str, str]) -> JobKey:
        project = _project(exchange)
        return JobKey(project, (reference.get("location") or "US").lower(), reference["jobId"])

    def _found(self, exchange: Exchange, project: str, job_id: str) -> JobKey:
        """The job where the caller looks for it; without a location BigQuery looks in US and EU."""
        location = exchange.request.query.get("location", "").lower()
        for key in self.ledger.keys(project, job_id):
            if key.location == location or (not location and key.location in ("us", "eu")):
                return key
        raise Refused(404, "notFound", f"Not found: Job {JobKey(project, location or 'us', job_id)}")

    def _check_dataset(self, table: Mapping[str, str], location: str) -> None:
        path = f"/bigquery/v2/projects/{table['projectId']}/datasets/{table['datasetId']}"
        status, dataset = self._upstream.call("GET", path)
        if status != 200 or str(dataset.get("location", "US")).lower() != location:
            label = f"{table['projectId']}:{table['datasetId']}"
            raise Refused(
                404, "notFound", f"Not found: Dataset {label} was not found in location {shown(location)}"
            )


def standard_type(field: Mapping[str, Any]) -> str:
    """A field's type in SQL. Example: ``ARRAY<STRUCT<`x` INTEGER>>``."""
    kind = kind_of(dict(field))
    if kind == "RECORD":
        members = ", ".join(f"`{member['name']}` {standard_type(member)}" for member in field["fields"])
        kind = f"STRUCT<{members}>"
    else:
        kind = {"INTEGER": "INT64", "FLOAT": "FLOAT64", "BOOLEAN": "BOOL"}.get(kind, kind)
    return f"ARRAY<{kind}>" if mode_of(dict(field)) == "REPEATED" else kind


def _check_load(load: Mapping[str, Any]) -> None:
    """What BigQuery refuses before there is a job."""
    uris = load.get("sourceUris") or []
    if len(uris) > MAX_URIS:
        raise Refused(400, "invalid", f"Too many sources provided: {len(uris)}. Limit is {MAX_URIS}.")
    if not uris:
        raise Refused(400, "required", "Required parameter is missing: sourceUris")
    if bad := [uri for uri in uris if not re.fullmatch(r"gs://[^/]+/.+", uri)]:
        raise Refused(400, "invalid", f"Source URI must be a Google Cloud Storage location: {bad[0]}")
    if not is_kbqs_own(load):
        return
    table = str(load.get("destinationTable", {}).get("tableId", ""))
    if "$" in table:
        raise Refused(400, "invalid", f"partition decorators are not known to this test server: {table}")
    unsupported = {
        "writeDisposition": load.get("writeDisposition", "WRITE_APPEND") not in WRITES,
        "schemaUpdateOptions": bool(load.get("schemaUpdateOptions")),
        "maxBadRecords": bool(load.get("maxBadRecords")),
        "useAvroLogicalTypes": not load.get("useAvroLogicalTypes"),
    }
    if names := [name for name, is_unsupported in unsupported.items() if is_unsupported]:
        raise Refused(
            501, "notImplemented", f"this test server cannot judge a load with this {', '.join(names)}"
        )


def _project(exchange: Exchange) -> str:
    return exchange.request.path.split("/projects/")[1].split("/")[0]


def _located(document: dict[str, Any], key: JobKey) -> dict[str, Any]:
    """local-bigquery says US to everything."""
    return {
        **document,
        "id": str(key),
        "jobReference": {**document["jobReference"], "location": shown(key.location)},
    }
