"""Settings: every `KBQ_*` variable, parsed into frozen values. Only `definitions.py` hands the environment in.

With nothing set, everything points at the local stack of `kbq local up` below `.kbq/`.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast, get_args

from kbq_assets.core.config.locations import (
    BigQueryProject,
    Staging,
    WarehousePlace,
    check_places,
    parse_staging,
    parse_warehouse,
)
from kbq_assets.core.config.notices import NotifySettings, parse_notifiers, parse_smtp
from kbq_assets.core.config.references import FORMS, is_reference
from kbq_assets.core.config.service import LAG_LABELS, PROMETHEUS, ServiceSettings, parse_reporters
from kbq_assets.core.errors import ConfigurationError

KafkaReader: TypeAlias = Literal["auto", "fetch", "librdkafka"]


@dataclass(frozen=True)
class KafkaSettings:
    """The broker. ``options`` are librdkafka's, by their own names; values may be `env:NAME` or `file:PATH`."""

    bootstrap_servers: str
    options: Mapping[str, str] = field(default_factory=dict)
    reader: KafkaReader = "auto"


@dataclass(frozen=True)
class RegistrySettings:
    """The schema registry. User, passwords and token may be `env:NAME` or `file:PATH`."""

    url: str
    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password: str = field(default="", repr=False)
    timeout_seconds: float = 10.0


@dataclass(frozen=True)
class SparkSettings:
    """The Spark session. ``options`` are Spark's, by their own names."""

    master: str = "local[*]"
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LocalSettings:
    """Ports of the local stack."""

    kafka_port: int = 39092
    controller_port: int = 39093
    registry_port: int = 38081


@dataclass(frozen=True)
class GoogleSettings:
    """Whose credentials extraction and loading use (references, see adapters/google/auth.py), and other endpoints
    than Google's own. Loading is everything that touches the warehouse, and cleaning."""

    extract_credentials: str = ""
    load_credentials: str = ""
    gcs_endpoint: str = ""
    bigquery_endpoint: str = ""


#: What a partition of Dagster's `staged_files` stands for. Keys are labels: nothing else depends on them.
PARTITION_KEYS: Final = ("topic_partition_table", "topic_table")


@dataclass(frozen=True)
class DagsterSettings:
    """Dagster's own database: a Postgres, or SQLite below KBQ_HOME where ``postgres_url`` is "" (it may be `env:NAME`
    or `file:PATH`); for how many days it keeps finished runs (0: for ever)."""

    postgres_url: str = field(default="", repr=False)
    run_days: int = 30


@dataclass(frozen=True)
class RunSettings:
    """Bounds of a run and of a window (see `ExtractionLimits`, `WindowLimits`, `LoadOptions`), how often a load asks
    for its jobs (``poll_seconds``), and how often Dagster looks for work (the others)."""

    run_seconds: float = 600.0
    run_records: int = 0
    run_bytes: int = 0
    cost_function: str = ""
    window_seconds: float = 300.0
    window_records: int = 5_000_000
    window_bytes: int = 512 * 1024 * 1024
    file_bytes: int = 256 * 1024 * 1024
    load_wait_seconds: float = 600.0
    poll_seconds: float = 2.0
    extract_seconds: int = 300
    load_seconds: int = 120
    clean_minutes: int = 9
    reconcile_days: int = 0
    partition_keys: str = PARTITION_KEYS[0]


#: A load job of BigQuery takes a minute or so and counts against a quota of 1,500 a day and table: Kafka BigQuery
#: Express's cadence.
BIGQUERY_RUN: Final = RunSettings(poll_seconds=120.0, load_seconds=900)


@dataclass(frozen=True)
class Settings:
    """Everything KBQ is told. ``source_topics`` is the catalogue's folder, or a source list's file; ``env`` is the
    catalogue's environment, "" for the only one."""

    home: Path
    staging_url: str
    warehouse_url: str
    source_topics: Path
    dataset: str
    env: str
    kafka: KafkaSettings
    registry: RegistrySettings
    spark: SparkSettings
    local: LocalSettings
    run: RunSettings
    google: GoogleSettings = field(default_factory=GoogleSettings)
    pii_keys: str = ""
    pii_seal_key: str = ""
    notify: NotifySettings = field(default_factory=NotifySettings)
    service: ServiceSettings = field(default_factory=ServiceSettings)
    dagster: DagsterSettings = field(default_factory=DagsterSettings)

    @property
    def staging(self) -> Staging:
        """The place of ``staging_url``."""
        return parse_staging(self.staging_url)

    @property
    def warehouse(self) -> WarehousePlace:
        """The place of ``warehouse_url``."""
        return parse_warehouse(self.warehouse_url)

    @property
    def demo_log(self) -> Path:
        """The demo producers' own log of what they produced."""
        return self.home / "demo"


_KAFKA_PREFIX: Final = "KBQ_KAFKA_"
_SPARK_PREFIX: Final = "KBQ_SPARK_CONF_"
#: Variables with one meaning; those with the prefixes above carry options under their own names.
VARIABLES: Final[Mapping[str, str]] = {
    "KBQ_HOME": "folder of the local stack, the default staging and the default warehouse (.kbq)",
    "KBQ_STAGING": "place of staged files and state: a folder or gs://bucket/prefix (KBQ_HOME/staging)",
    "KBQ_WAREHOUSE": "duckdb:PATH or bigquery://project?location=EU (duckdb:KBQ_HOME/warehouse.duckdb)",
    "KBQ_SOURCE_TOPICS": "the topic catalogue's folder, or a list of topics (examples/catalog)",
    "KBQ_ENV": "environment of the catalogue, where it has several (the only one)",
    "KBQ_DATASET": "dataset of topics whose line names none (kafka)",
    "KBQ_KAFKA_BOOTSTRAP_SERVERS": "host:port,… (the local stack's)",
    "KBQ_READER": "who reads records: fetch, librdkafka, or auto: fetch where it can (auto)",
    "KBQ_REGISTRY_URL": "URL of the Confluent-compatible registry (the local stack's)",
    "KBQ_REGISTRY_USERNAME": "user for basic authentication; env:NAME or file:PATH allowed",
    "KBQ_REGISTRY_PASSWORD": "password; env:NAME or file:PATH allowed",
    "KBQ_REGISTRY_TOKEN": "bearer token; env:NAME or file:PATH allowed",
    "KBQ_REGISTRY_CA_FILE": "certificate authorities that sign the registry's certificate",
    "KBQ_REGISTRY_CERTIFICATE_FILE": "client certificate for the registry",
    "KBQ_REGISTRY_KEY_FILE": "key of the client certificate",
    "KBQ_REGISTRY_KEY_PASSWORD": "password of that key; env:NAME or file:PATH allowed",
    "KBQ_REGISTRY_TIMEOUT_SECONDS": "seconds to wait for the registry (10)",
    "KBQ_EXTRACT_CREDENTIALS": "Google credentials of extraction: file:PATH, impersonate:EMAIL, anonymous (ADC)",
    "KBQ_LOAD_CREDENTIALS": "Google credentials of loading and cleaning: as above (ADC)",
    "KBQ_GCS_ENDPOINT": "URL of another Cloud Storage API: a private endpoint or a local server (Google's)",
    "KBQ_BIGQUERY_ENDPOINT": "URL of another BigQuery API (Google's)",
    "KBQ_SPARK_MASTER": "local[*], spark://host:port, k8s://…, yarn (local[*])",
    "KBQ_LOCAL_KAFKA_PORT": "port of the local broker (39092)",
    "KBQ_LOCAL_CONTROLLER_PORT": "port of the local controller (39093)",
    "KBQ_LOCAL_REGISTRY_PORT": "port of the local registry (38081)",
    "KBQ_RUN_SECONDS": "after this many seconds of a run (600) no task starts, and none reads on",
    "KBQ_RUN_RECORDS": "most records that a run reads, counted in positions, shared out fairly (no limit)",
    "KBQ_RUN_BYTES": "most bytes of values that a run reads, by average size; at least 10485760 (no limit)",
    "KBQ_COST_FUNCTION": "module:function from a topic's usage to its cost (core seconds of its tasks)",
    "KBQ_WINDOW_SECONDS": "a window ends after this many seconds (300)",
    "KBQ_WINDOW_RECORDS": "a window ends after this many records (5000000)",
    "KBQ_WINDOW_BYTES": "a window ends after this many staged bytes (536870912)",
    "KBQ_FILE_BYTES": "a staged file ends after this many bytes (268435456)",
    "KBQ_LOAD_WAIT_SECONDS": "how long a load run waits for its jobs (600)",
    "KBQ_POLL_SECONDS": "seconds between a load run's looks at its jobs (2; BigQuery: 120)",
    "KBQ_EXTRACT_SECONDS": "seconds between looks for new records on the broker, by Dagster's daemon (300)",
    "KBQ_LOAD_SECONDS": "seconds between looks for committed files, by Dagster's daemon (120; BigQuery: 900)",
    "KBQ_CLEAN_MINUTES": "minutes between clean-ups, by Dagster's daemon; 1 to 59 (9)",
    "KBQ_DAGSTER_POSTGRES_URL": "Postgres of Dagster's runs and events; env:NAME or file:PATH allowed (SQLite)",
    "KBQ_DAGSTER_RUN_DAYS": "days that Dagster keeps finished runs; 0 keeps all (30)",
    "KBQ_PII_KEYS": "keys of pseudonyms: a reference to a JSON document (none)",
    "KBQ_PII_SEAL_KEY": "public key that seals error rows with personal data: a reference (none)",
    "KBQ_RECONCILE_DAYS": "days of event dates that Dagster's counts read; 0 reads all (0)",
    "KBQ_NOTIFY": "who is told of failures: slack:env:NAME, email:ADDRESS, webhook:URL, …, with commas (nobody)",
    "KBQ_NOTIFY_REPEAT_HOURS": "hours after which a condition that lasts is told again (24)",
    "KBQ_NOTIFY_SECONDS": "seconds between looks for something to tell, by Dagster's daemon; at least 10 (60)",
    "KBQ_WEBHOOK_SECRET": "key that signs what webhooks get; env:NAME or file:PATH allowed (unsigned)",
    "KBQ_UI_URL": "where people reach Dagster's UI, for links in notices (no links)",
    "KBQ_SMTP_HOST": "mail server, needed for e-mail",
    "KBQ_SMTP_PORT": "its port (587)",
    "KBQ_SMTP_SECURITY": "starttls, tls, or none: without a password only (starttls)",
    "KBQ_SMTP_USERNAME": "user of the mail server; env:NAME or file:PATH allowed",
    "KBQ_SMTP_PASSWORD": "password; env:NAME or file:PATH allowed",
    "KBQ_SMTP_FROM": "sender's address of notices, needed for e-mail",
    "KBQ_SMTP_CA_FILE": "certificate authorities that sign the mail server's certificate",
    "KBQ_SERVE_SECONDS": "seconds between the service's looks at state and broker; at least 5 (15)",
    "KBQ_REPORTERS": "who gets metrics: prometheus, log, webhook:URL or a plug-in, with commas (prometheus)",
    "KBQ_REPORT_SECONDS": "seconds between reports of log, webhook and plug-ins; at least 5 (60)",
    "KBQ_LAG_LABEL": "what lag is told per: topic or partition (topic)",
    "KBQ_PARTITION_KEYS": "keys of Dagster's staged files: topic_partition_table or topic_table (the first)",
}


def parse_settings(environ: Mapping[str, str]) -> Settings:
    """Parse `KBQ_*` variables. Raises ConfigurationError for an unknown or malformed one, never echoing a value."""
    _refuse_unknown(environ)
    home = Path(environ.get("KBQ_HOME", ".kbq")).absolute()
    local = LocalSettings(
        _integer(environ, "KBQ_LOCAL_KAFKA_PORT", LocalSettings.kafka_port),
        _integer(environ, "KBQ_LOCAL_CONTROLLER_PORT", LocalSettings.controller_port),
        _integer(environ, "KBQ_LOCAL_REGISTRY_PORT", LocalSettings.registry_port),
    )
    staging_url = environ.get("KBQ_STAGING", str(home / "staging"))
    warehouse_url = environ.get("KBQ_WAREHOUSE", f"duckdb:{home / 'warehouse.duckdb'}")
    warehouse = parse_warehouse(warehouse_url)
    check_places(parse_staging(staging_url), warehouse)
    return Settings(
        home=home,
        staging_url=staging_url,
        warehouse_url=warehouse_url,
        source_topics=Path(environ.get("KBQ_SOURCE_TOPICS", "examples/catalog")).absolute(),
        dataset=environ.get("KBQ_DATASET", "kafka"),
        env=environ.get("KBQ_ENV", ""),
        kafka=KafkaSettings(
            environ.get("KBQ_KAFKA_BOOTSTRAP_SERVERS", f"127.0.0.1:{local.kafka_port}"),
            _kafka_options(environ),
            _reader(environ),
        ),
        registry=_registry(environ, local),
        spark=SparkSettings(environ.get("KBQ_SPARK_MASTER", "local[*]"), _spark_options(environ)),
        local=local,
        run=_run(environ, BIGQUERY_RUN if isinstance(warehouse, BigQueryProject) else RunSettings()),
        google=_google(environ),
        pii_keys=_reference(environ, "KBQ_PII_KEYS"),
        pii_seal_key=_reference(environ, "KBQ_PII_SEAL_KEY"),
        dagster=DagsterSettings(
            environ.get("KBQ_DAGSTER_POSTGRES_URL", ""),
            _integer(environ, "KBQ_DAGSTER_RUN_DAYS", DagsterSettings.run_days),
        ),
        notify=_notify(environ),
        service=_service(environ),
    )


def _reader(environ: Mapping[str, str]) -> KafkaReader:
    value = environ.get("KBQ_READER", KafkaSettings.reader)
    for reader in get_args(KafkaReader):
        if value == reader:
            return cast("KafkaReader", reader)
    raise ConfigurationError("KBQ_READER is no reader", next_step=VARIABLES["KBQ_READER"])


def _registry(environ: Mapping[str, str], local: LocalSettings) -> RegistrySettings:
    return RegistrySettings(
        url=environ.get("KBQ_REGISTRY_URL", f"http://127.0.0.1:{local.registry_port}/apis/ccompat/v7"),
        username=environ.get("KBQ_REGISTRY_USERNAME", ""),
        password=environ.get("KBQ_REGISTRY_PASSWORD", ""),
        token=environ.get("KBQ_REGISTRY_TOKEN", ""),
        ca_file=environ.get("KBQ_REGISTRY_CA_FILE", ""),
        certificate_file=environ.get("KBQ_REGISTRY_CERTIFICATE_FILE", ""),
        key_file=environ.get("KBQ_REGISTRY_KEY_FILE", ""),
        key_password=environ.get("KBQ_REGISTRY_KEY_PASSWORD", ""),
        timeout_seconds=_integer(environ, "KBQ_REGISTRY_TIMEOUT_SECONDS", 10),
    )


def _google(environ: Mapping[str, str]) -> GoogleSettings:
    return GoogleSettings(
        extract_credentials=_credentials(environ, "KBQ_EXTRACT_CREDENTIALS"),
        load_credentials=_credentials(environ, "KBQ_LOAD_CREDENTIALS"),
        gcs_endpoint=_endpoint(environ, "KBQ_GCS_ENDPOINT"),
        bigquery_endpoint=_endpoint(environ, "KBQ_BIGQUERY_ENDPOINT"),
    )


def _notify(environ: Mapping[str, str]) -> NotifySettings:
    notifiers = parse_notifiers(environ.get("KBQ_NOTIFY", ""))
    return NotifySettings(
        notifiers=notifiers,
        repeat_hours=_integer(environ, "KBQ_NOTIFY_REPEAT_HOURS", NotifySettings.repeat_hours, 1),
        every_seconds=_integer(environ, "KBQ_NOTIFY_SECONDS", NotifySettings.every_seconds, 10),
        webhook_secret=environ.get("KBQ_WEBHOOK_SECRET", ""),
        ui_url=_endpoint(environ, "KBQ_UI_URL"),
        smtp=parse_smtp(environ, _integer(environ, "KBQ_SMTP_PORT", 587, 1, 65535), notifiers),
    )


def _service(environ: Mapping[str, str]) -> ServiceSettings:
    return ServiceSettings(
        reporters=parse_reporters(environ.get("KBQ_REPORTERS", PROMETHEUS)),
        look_seconds=_integer(environ, "KBQ_SERVE_SECONDS", ServiceSettings.look_seconds, 5),
        report_seconds=_integer(environ, "KBQ_REPORT_SECONDS", ServiceSettings.report_seconds, 5),
        lag_label=_choice(environ, "KBQ_LAG_LABEL", LAG_LABELS),
    )


def _credentials(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    kind, _, target = value.partition(":")
    if value in ("", "anonymous") or (kind in ("file", "impersonate") and target):
        return value
    raise ConfigurationError(f"{name} is no reference to credentials", next_step=VARIABLES[name])


def _reference(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if value and not is_reference(value):
        raise ConfigurationError(f"{name} is no reference", next_step=FORMS)
    return value


def _endpoint(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if value and not re.fullmatch(r"https?://[\w.:\[\]-]+(/[\w./-]*)?", value):
        raise ConfigurationError(f"{name} is not an http or https URL", next_step=VARIABLES[name])
    return value.rstrip("/")


def _run(environ: Mapping[str, str], defaults: RunSettings) -> RunSettings:
    return RunSettings(
        run_seconds=_integer(environ, "KBQ_RUN_SECONDS", int(defaults.run_seconds)),
        run_records=_integer(environ, "KBQ_RUN_RECORDS", defaults.run_records, 1),
        run_bytes=_integer(environ, "KBQ_RUN_BYTES", defaults.run_bytes, 10 * 1024 * 1024),
        cost_function=environ.get("KBQ_COST_FUNCTION", ""),
        window_seconds=_integer(environ, "KBQ_WINDOW_SECONDS", int(defaults.window_seconds)),
        window_records=_integer(environ, "KBQ_WINDOW_RECORDS", defaults.window_records),
        window_bytes=_integer(environ, "KBQ_WINDOW_BYTES", defaults.window_bytes),
        file_bytes=_integer(environ, "KBQ_FILE_BYTES", defaults.file_bytes),
        load_wait_seconds=_integer(environ, "KBQ_LOAD_WAIT_SECONDS", int(defaults.load_wait_seconds)),
        poll_seconds=_integer(environ, "KBQ_POLL_SECONDS", int(defaults.poll_seconds), 1),
        extract_seconds=_integer(environ, "KBQ_EXTRACT_SECONDS", defaults.extract_seconds),
        load_seconds=_integer(environ, "KBQ_LOAD_SECONDS", defaults.load_seconds),
        clean_minutes=_integer(environ, "KBQ_CLEAN_MINUTES", defaults.clean_minutes, 1, 59),
        reconcile_days=_integer(environ, "KBQ_RECONCILE_DAYS", defaults.reconcile_days),
        partition_keys=_choice(environ, "KBQ_PARTITION_KEYS", PARTITION_KEYS),
    )


def _choice(environ: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """One of the choices, the first of them by default."""
    value = environ.get(name, choices[0])
    if value not in choices:
        raise ConfigurationError(f"{name} is none of {', '.join(choices)}", next_step=VARIABLES[name])
    return value


def _kafka_options(environ: Mapping[str, str]) -> dict[str, str]:
    """`KBQ_KAFKA_SASL_MECHANISM=PLAIN` is librdkafka's `sasl.mechanism`; the adapter's allow-list judges the names."""
    return {
        name.removeprefix(_KAFKA_PREFIX).lower().replace("_", "."): value
        for name, value in environ.items()
        if name.startswith(_KAFKA_PREFIX) and name not in VARIABLES
    }


def _spark_options(environ: Mapping[str, str]) -> dict[str, str]:
    """`KBQ_SPARK_CONF_spark.executor.memory=2g` is Spark's `spark.executor.memory`."""
    return {n.removeprefix(_SPARK_PREFIX): v for n, v in environ.items() if n.startswith(_SPARK_PREFIX)}


#: Read by the test suite and CI, not by the product.
_TEST_VARIABLES: Final = ("KBQ_TEST_", "KBQ_CI", "KBQ_NO_SKIP", "KBQ_FUZZ")


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    prefixes = (_KAFKA_PREFIX, _SPARK_PREFIX, *_TEST_VARIABLES)
    for name in environ:
        if name.startswith("KBQ_") and name not in VARIABLES and not name.startswith(prefixes):
            near = difflib.get_close_matches(name, VARIABLES, 1)
            hint = f"did you mean {near[0]}?" if near else "`kbq settings` lists the variables"
            raise ConfigurationError(f"unknown variable {name}", next_step=hint)


def _integer(
    environ: Mapping[str, str], name: str, default: int, least: int = 0, most: int = sys.maxsize
) -> int:
    text = environ.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit():
        raise ConfigurationError(f"{name} is not a whole number", next_step=VARIABLES[name])
    if not least <= int(text) <= most:
        raise ConfigurationError(f"{name} is out of bounds", next_step=VARIABLES[name])
    return int(text)
