"""The parts of the settings. Each declares its variables, and an adapter gets only its own part. Extras have modules of
their own: core/config/notices.py, core/config/service.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

from kbq_assets.core.config.variables import (
    Variable,
    choice,
    credentials,
    folder,
    kms_key,
    reference,
    url,
    variable,
    whole,
)
from kbq_assets.core.errors import ConfigurationError

#: Formats of commands' log lines; the first is the default.
LOG_FORMATS: Final = ("text", "json")
#: Origins of variables that no file sets. `kbq local up` stores its ports.
ENVIRONMENT: Final = "environment"
LOCAL_STACK: Final = "kbq local up"
#: The default if staging is a bucket. With all defaults, the first event of a quiet partition becomes a row within 30
#: minutes.
QUIET_SECONDS: Final = 600
KafkaReader: TypeAlias = Literal["auto", "fetch", "librdkafka"]
_SECRETS: Final = "env:NAME or file:PATH allowed"


@dataclass(frozen=True)
class CatalogSettings:
    """The topics to extract. ``source_topics`` is the catalog's folder or a source list's file; ``env`` is the
    catalog's environment, "" for the only one."""

    source_topics: Path = variable(
        "KBQ_SOURCE_TOPICS",
        "the topic catalog's folder, or a list of topics",
        parse=folder,
        shown_default="examples/catalog",
    )
    env: str = variable(
        "KBQ_ENV", "environment of the catalog, if it has several", "", shown_default="the only one"
    )
    dataset: str = variable("KBQ_DATASET", "dataset of topics that do not set one", "kafka")
    quiet_seconds: int = variable(
        "KBQ_QUIET_SECONDS",
        "a partition with fewer than 100 new records waits until the oldest is this old; 0: it does not wait. A "
        "topic's `quiet_seconds` overrides it",
        0,
        whole(),
        shown_default=f"{QUIET_SECONDS} if KBQ_STAGING is a bucket, where each file costs money; else 0",
    )


@dataclass(frozen=True)
class KafkaSettings:
    """The broker. ``options`` are librdkafka's, with librdkafka's names; values may be `env:NAME` or `file:PATH`."""

    bootstrap_servers: str = variable(
        "KBQ_KAFKA_BOOTSTRAP_SERVERS", "host:port,…", shown_default="the local stack's"
    )
    options: Mapping[str, str] = field(default_factory=dict)
    advisory_group: str = variable(
        "KBQ_ADVISORY_GROUP",
        "consumer group that gets the published positions after each run, for Kafka's own tools",
        "",
        shown_default="none",
    )
    reader: KafkaReader = variable(
        "KBQ_READER",
        "Kafka reader: fetch, librdkafka, or auto, which uses fetch if possible",
        "auto",
        choice(*get_args(KafkaReader)),
    )


@dataclass(frozen=True)
class RegistrySettings:
    """The schema registry. User, passwords and token may be `env:NAME` or `file:PATH`."""

    url: str = variable(
        "KBQ_REGISTRY_URL",
        "URL of the Confluent-compatible registry; separate several by commas",
        shown_default="the local stack's",
    )
    username: str = variable("KBQ_REGISTRY_USERNAME", f"user for basic authentication; {_SECRETS}", "")
    password: str = variable("KBQ_REGISTRY_PASSWORD", f"password; {_SECRETS}", "", secret=True)
    token: str = variable("KBQ_REGISTRY_TOKEN", f"bearer token; {_SECRETS}", "", secret=True)
    ca_file: str = variable(
        "KBQ_REGISTRY_CA_FILE", "certificate authorities that sign the registry's certificate", ""
    )
    certificate_file: str = variable(
        "KBQ_REGISTRY_CERTIFICATE_FILE", "client certificate for the registry", ""
    )
    key_file: str = variable("KBQ_REGISTRY_KEY_FILE", "key of the client certificate", "")
    key_password: str = variable(
        "KBQ_REGISTRY_KEY_PASSWORD", f"password of that key; {_SECRETS}", "", secret=True
    )
    timeout_seconds: float = variable(
        "KBQ_REGISTRY_TIMEOUT_SECONDS", "seconds to wait for the registry", 10, whole()
    )


@dataclass(frozen=True)
class GoogleSettings:
    """References to the credentials for extraction and for loading (see adapters/google/auth.py), and endpoints that
    replace Google's. Loading includes clean-up and everything that uses the warehouse."""

    extract_credentials: str = variable(
        "KBQ_EXTRACT_CREDENTIALS",
        "Google credentials of extraction: file:PATH, impersonate:EMAIL, anonymous",
        "",
        credentials,
        shown_default="ADC",
        reference=True,
    )
    load_credentials: str = variable(
        "KBQ_LOAD_CREDENTIALS",
        "Google credentials of loading and clean-up: as above",
        "",
        credentials,
        shown_default="ADC",
        reference=True,
    )
    gcs_endpoint: str = variable(
        "KBQ_GCS_ENDPOINT",
        "URL of another Cloud Storage API: a private endpoint or a local server",
        "",
        url,
        shown_default="Google's",
    )
    bigquery_endpoint: str = variable(
        "KBQ_BIGQUERY_ENDPOINT", "URL of another BigQuery API", "", url, shown_default="Google's"
    )
    kms_key: str = variable(
        "KBQ_KMS_KEY",
        "Cloud KMS key of new objects, datasets, tables and results of queries",
        "",
        kms_key,
        shown_default="the bucket's and the datasets'",
    )


_PROCESSES: Final = re.compile(r"processes\[(\*|[1-9][0-9]{0,2})\]")


def _master(variable: Variable, value: str) -> str:
    if value.startswith("processes") and not _PROCESSES.fullmatch(value):
        raise ConfigurationError(
            f"{variable.name}: {value!r} is not a number of processes",
            next_step="use processes[4], or processes[*] for one per core",
        )
    return value


@dataclass(frozen=True)
class SparkSettings:
    """Where tasks run. ``options`` are Spark's, with Spark's names. ``lake_mb`` is the size from which on a lake's load
    jobs run there too, 0 for never."""

    master: str = variable(
        "KBQ_SPARK_MASTER",
        "local[*], spark://host:port, k8s://… or yarn; processes[*]: run tasks in processes of this machine, without "
        "Spark and Java",
        "local[*]",
        _master,
    )
    options: Mapping[str, str] = field(default_factory=dict)
    lake_mb: int = variable(
        "KBQ_LAKE_SPARK_MB",
        "load jobs of a lake with at least this many MB of files run on Spark; 0: none",
        256,
        whole(),
    )

    @property
    def is_local(self) -> bool:
        """Whether tasks run on this machine."""
        return self.master.startswith("local") or bool(self.processes)

    @property
    def processes(self) -> str:
        """The number of processes that run tasks instead of Spark, or * for one per core; "" with Spark."""
        found = _PROCESSES.fullmatch(self.master)
        return found[1] if found else ""


_PORT: Final = "{}, or a free port if that is taken"


@dataclass(frozen=True)
class LocalSettings:
    """The settings file, and the ports of the local stack. Ports that variables set are in ``fixed``; `kbq local up`
    stores the others and may change them. ``origins`` tell where each variable was set: ENVIRONMENT, a file, or
    LOCAL_STACK."""

    file: str = variable(
        "KBQ_SETTINGS",
        "file with these variables; the environment wins",
        "",
        shown_default="kbq.toml of the current folder, if there is one",
    )

    kafka_port: int = variable(
        "KBQ_LOCAL_KAFKA_PORT", "port of the local broker", 39092, whole(), shown_default=_PORT.format(39092)
    )
    controller_port: int = variable(
        "KBQ_LOCAL_CONTROLLER_PORT",
        "port of the local controller",
        39093,
        whole(),
        shown_default=_PORT.format(39093),
    )
    registry_port: int = variable(
        "KBQ_LOCAL_REGISTRY_PORT",
        "port of the local registry",
        38081,
        whole(),
        shown_default=_PORT.format(38081),
    )
    fixed: frozenset[str] = frozenset()
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class WindowSettings:
    """Limits of a window (see `WindowLimits`)."""

    seconds: float = variable("KBQ_WINDOW_SECONDS", "a window ends after this many seconds", 300, whole())
    records: int = variable("KBQ_WINDOW_RECORDS", "a window ends after this many records", 5_000_000, whole())
    bytes: int = variable(
        "KBQ_WINDOW_BYTES", "a window ends after this many staged bytes", 512 * 1024 * 1024, whole()
    )
    file_bytes: int = variable(
        "KBQ_FILE_BYTES", "a staged file ends after this many bytes", 256 * 1024 * 1024, whole()
    )


@dataclass(frozen=True)
class RunSettings:
    """Limits of a run (see `ExtractionLimits`, `LoadOptions`), the poll interval for load jobs (``poll_seconds``), how
    often Dagster checks for work, and the format of log lines. BigQuery has its own defaults, from Kafka BigQuery
    Express, because a load job takes about a minute and counts toward a quota of 1,500 per table and day.
    """

    run_seconds: float = variable(
        "KBQ_RUN_SECONDS",
        "after this many seconds of a run, no more tasks start, and running ones stop reading",
        600,
        whole(),
    )
    run_records: int = variable(
        "KBQ_RUN_RECORDS",
        "most records that a run reads, counted in positions and shared fairly",
        0,
        whole(1),
        shown_default="no limit",
        show=lambda value: str(value or ""),
    )
    run_bytes: int = variable(
        "KBQ_RUN_BYTES",
        "most bytes of values that a run reads, estimated from averages; at least 10485760",
        0,
        whole(10 * 1024 * 1024),
        shown_default="no limit",
        show=lambda value: str(value or ""),
    )
    window: WindowSettings = field(default_factory=WindowSettings)
    done_files: str = variable(
        "KBQ_DONE_FILES",
        "on, or off: write no done files, which are half of the writes to a bucket; sensors poll the state instead",
        "on",
        choice("on", "off"),
    )
    load_wait_seconds: float = variable(
        "KBQ_LOAD_WAIT_SECONDS", "how long a load run waits for its jobs", 600, whole()
    )
    poll_seconds: float = variable(
        "KBQ_POLL_SECONDS", "seconds between a load run's polls of its jobs", 2, whole(1), on_bigquery=120
    )
    extract_seconds: int = variable(
        "KBQ_EXTRACT_SECONDS",
        "seconds between checks by Dagster's daemon for new records on the broker",
        300,
        whole(),
    )
    load_seconds: int = variable(
        "KBQ_LOAD_SECONDS",
        "least seconds between two loads requested by Dagster's sensor",
        120,
        whole(),
        on_bigquery=900,
    )
    hours_seconds: int = variable(
        "KBQ_HOURS_SECONDS",
        "least seconds between two writes of a dataset's `_kbq_completeness`",
        600,
        whole(),
    )
    clean_minutes: int = variable(
        "KBQ_CLEAN_MINUTES", "minutes between clean-ups by Dagster's daemon; 1 to 59", 9, whole(1, 59)
    )
    reconcile_days: int = variable(
        "KBQ_RECONCILE_DAYS", "days of event dates that Dagster's counts read; 0 reads all", 0, whole()
    )
    log_format: str = variable(
        "KBQ_LOG_FORMAT",
        "format of commands' log lines on stderr: text, or json for Cloud Logging",
        LOG_FORMATS[0],
        choice(*LOG_FORMATS),
    )


@dataclass(frozen=True)
class DagsterSettings:
    """Dagster's own database (Postgres, or SQLite below KBQ_HOME if ``postgres_url`` is ""), and how much history KBQ
    writes to it and how long it keeps it (``run_days`` 0: forever)."""

    postgres_url: str = variable(
        "KBQ_DAGSTER_POSTGRES_URL",
        f"Postgres of Dagster's runs and events; {_SECRETS}",
        "",
        shown_default="SQLite",
        repr=False,
    )
    run_days: int = variable(
        "KBQ_DAGSTER_RUN_DAYS", "days that Dagster keeps finished runs; 0 keeps all", 30, whole()
    )
    partition_events: int = variable(
        "KBQ_PARTITION_EVENTS",
        "most changed partitions that one extraction reports to Dagster individually; above that, it reports per "
        "topic",
        500,
        whole(),
    )
    resident_seconds: int = variable(
        "KBQ_RESIDENT_SECONDS",
        "seconds for which a run of Dagster's sensor keeps extracting on one Spark application; 0: it extracts once",
        0,
        whole(),
    )


@dataclass(frozen=True)
class PiiSettings:
    """References to the pseudonym keys, and to the public key that seals error rows."""

    keys: str = variable(
        "KBQ_PII_KEYS",
        "keys of pseudonyms: a reference to a JSON document",
        "",
        reference,
        shown_default="none",
        reference=True,
    )
    seal_key: str = variable(
        "KBQ_PII_SEAL_KEY",
        "public key that seals error rows with personal data: a reference",
        "",
        reference,
        shown_default="none",
        reference=True,
    )
