"""Settings: all `KBQ_*` variables, parsed into frozen values. Only `definitions.py` passes the environment in.

The defaults point to the local stack of `kbq local up` below `.kbq/`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kbq_assets.core.config.backup import BackupSettings
from kbq_assets.core.config.filebatches import FileBatchSettings
from kbq_assets.core.config.locations import (
    BigQueryProject,
    Bucket,
    NamedWarehouse,
    Staging,
    WarehousePlace,
    check_places,
    parse_staging,
    parse_warehouse,
    parse_warehouses,
)
from kbq_assets.core.config.notices import NotifySettings
from kbq_assets.core.config.parts import (
    ENVIRONMENT,
    LOCAL_STACK,
    QUIET_SECONDS,
    CatalogSettings,
    DagsterSettings,
    GoogleSettings,
    KafkaSettings,
    LocalSettings,
    PiiSettings,
    RegistrySettings,
    RunSettings,
    SparkSettings,
)
from kbq_assets.core.config.service import ServiceSettings
from kbq_assets.core.config.variables import (
    Variable,
    declared_in,
    folder,
    parse_part,
    parts_in,
    variable,
)
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.protocol.names import FIRST_WAREHOUSE

#: Spark tasks do not get these parts, because they may contain secrets.
_DRIVER_ONLY: Final = {"driver_only": True}


@dataclass(frozen=True)
class ExtrasSettings:
    """Settings of extras. To remove an extra's settings, delete its field here and its module."""

    notify: NotifySettings = field(default_factory=NotifySettings)
    service: ServiceSettings = field(default_factory=ServiceSettings)
    files: FileBatchSettings = field(default_factory=FileBatchSettings)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings, in parts."""

    home: Path = variable(
        "KBQ_HOME",
        "folder of the local stack, the default staging and the default warehouse",
        parse=folder,
        shown_default=".kbq",
    )
    staging_url: str = variable(
        "KBQ_STAGING",
        "place of staged files and state: a folder or gs://bucket/prefix",
        shown_default="KBQ_HOME/staging",
    )
    warehouse_urls: str = variable(
        "KBQ_WAREHOUSE",
        "duckdb:PATH, bigquery://project?location=EU, or iceberg:FOLDER (or a bucket, or a catalog's name); name "
        "them if there are several: bq=bigquery://project,local=duckdb:PATH",
        shown_default="duckdb:KBQ_HOME/warehouse.duckdb",
    )
    #: the index in ``warehouses`` of the warehouse to load, check and repair
    chosen: int = 0
    catalog: CatalogSettings
    kafka: KafkaSettings
    registry: RegistrySettings
    google: GoogleSettings
    spark: SparkSettings
    local: LocalSettings
    run: RunSettings
    backup: BackupSettings = field(default_factory=BackupSettings)
    dagster: DagsterSettings = field(default_factory=DagsterSettings, metadata=_DRIVER_ONLY)
    pii: PiiSettings
    extras: ExtrasSettings = field(default_factory=ExtrasSettings, metadata=_DRIVER_ONLY)

    @property
    def staging(self) -> Staging:
        """The parsed ``staging_url``."""
        return parse_staging(self.staging_url)

    @property
    def warehouses(self) -> tuple[NamedWarehouse, ...]:
        """All warehouses, in the order of `KBQ_WAREHOUSE`."""
        return parse_warehouses(self.warehouse_urls)

    @property
    def warehouse_url(self) -> str:
        return self.warehouses[self.chosen].url

    @property
    def warehouse(self) -> WarehousePlace:
        return parse_warehouse(self.warehouse_url)

    @property
    def warehouse_area(self) -> str:
        """The name of the chosen warehouse in stored state."""
        return self.warehouses[self.chosen].name if self.chosen else FIRST_WAREHOUSE

    @property
    def other_warehouses(self) -> tuple[str, ...]:
        """The names of the warehouses besides the first."""
        return tuple(each.name for each in self.warehouses[1:])

    def for_warehouse(self, name: str) -> Settings:
        return dataclasses.replace(self, chosen=self._index(name))

    def below(self, folder: str) -> Settings:
        """The settings for a staging area of its own below this one, with the same backups. The chosen warehouse is its
        first and only one."""
        staging_url = f"{self.staging_url.rstrip('/')}/{folder}"
        backup = dataclasses.replace(self.backup, location=self.backup.location or self.staging_url)
        return dataclasses.replace(
            self, staging_url=staging_url, backup=backup, warehouse_urls=self.warehouse_url, chosen=0
        )

    def warehouse_named(self, stored: str) -> str:
        """The name in `KBQ_WAREHOUSE` of a warehouse in stored state; "" if the only one has no name."""
        return self.warehouses[0].name if stored == FIRST_WAREHOUSE else stored

    def stored_warehouses(self, names: Iterable[str]) -> tuple[str, ...]:
        """Warehouse names of `KBQ_WAREHOUSE` as in stored state; empty if only the first (PROTOCOL W2)."""
        indexes = sorted(map(self._index, names))
        stored = tuple(self.warehouses[index].name if index else FIRST_WAREHOUSE for index in indexes)
        return () if stored == (FIRST_WAREHOUSE,) else stored

    def _index(self, name: str) -> int:
        known = [each.name for each in self.warehouses]
        if name not in known:
            raise ConfigurationError(
                f"KBQ_WAREHOUSE has no warehouse {name}",
                next_step=f"name one of {', '.join(known)}"
                if all(known)
                else "leave the name out: the only warehouse has none",
            )
        return known.index(name)

    @property
    def demo_log(self) -> Path:
        """The demo producers' own log of their records."""
        return self.home / "demo"

    @property
    def for_tasks(self) -> Settings:
        """The settings that Spark tasks need. The rest stays on the driver."""
        hidden = {each.name for each in dataclasses.fields(self) if each.metadata == _DRIVER_ONLY}
        blank = {name: part() for name, part in parts_in(Settings) if name in hidden}
        kafka = dataclasses.replace(self.kafka, advisory_group="")
        local = dataclasses.replace(self.local, file="", origins={})
        return dataclasses.replace(
            self, spark=SparkSettings(self.spark.master), kafka=kafka, local=local, **blank
        )


_KAFKA_PREFIX: Final = "KBQ_KAFKA_"
_SPARK_PREFIX: Final = "KBQ_SPARK_CONF_"
#: Read by the test suite and CI, not by the product.
_TEST_VARIABLES: Final = ("KBQ_TEST_", "KBQ_CI", "KBQ_NO_SKIP", "KBQ_FUZZ")


def _walk(kind: type, path: str = "") -> Iterator[tuple[str, Variable]]:
    declared, parts = dict(declared_in(kind)), dict(parts_in(kind))
    for each in dataclasses.fields(kind):
        if each.name in declared:
            yield path + each.name, declared[each.name]
        elif each.name in parts:
            yield from _walk(parts[each.name], f"{path}{each.name}.")


#: Variables by the path of the field in `Settings` that each sets.
_PATHS: Final = dict(_walk(Settings))
#: Variables by name. Variables with the prefixes above set options with their own names instead.
VARIABLES: Final[Mapping[str, Variable]] = {each.name: each for each in _PATHS.values()}


def values_of(settings: Settings) -> dict[str, str]:
    """The value of every variable as text, by name. Secrets are not hidden."""
    found = {}
    for path, each in _PATHS.items():
        value: Any = settings
        for name in path.split("."):
            value = getattr(value, name)
        found[each.name] = each.show(value)
    return found


class UnknownVariables(ConfigurationError):
    """Variables that KBQ does not have. ``others`` are the settings without them, None if these are invalid too."""

    others: Settings | None = None


def parse_settings(
    environ: Mapping[str, str],
    local_ports: Mapping[str, int] | None = None,
    origins: Mapping[str, str] | None = None,
) -> Settings:
    """Parse `KBQ_*` variables. ``local_ports`` replace defaults of the local stack. ``origins`` tell where each
    variable was set, by default in the environment. Raises ConfigurationError for a malformed variable and
    UnknownVariables for unknown ones. Errors never show a value that may be secret."""
    origins = (
        {name: ENVIRONMENT for name in environ if name.startswith("KBQ_")} if origins is None else origins
    )
    unknown = {name: origins.get(name, ENVIRONMENT) for name in environ if _is_unknown(name)}
    if not unknown:
        return _parsed(environ, local_ports or {}, origins)
    error = _unknown_variables(unknown)
    with contextlib.suppress(ConfigurationError):
        known = {name: value for name, value in environ.items() if name not in unknown}
        error.others = _parsed(known, local_ports or {}, origins)
    raise error


def _parsed(
    environ: Mapping[str, str], local_ports: Mapping[str, int], origins: Mapping[str, str]
) -> Settings:
    home = Path(environ.get("KBQ_HOME", ".kbq")).absolute()
    local = _local(environ, local_ports, origins)
    warehouse_urls = environ.get("KBQ_WAREHOUSE", f"duckdb:{home / 'warehouse.duckdb'}")
    staging_url = environ.get("KBQ_STAGING", str(home / "staging"))
    warehouses = parse_warehouses(warehouse_urls)
    for each in warehouses:
        check_places(parse_staging(staging_url), each.place)
    return parse_part(
        Settings,
        environ,
        home=home,
        staging_url=staging_url,
        warehouse_urls=warehouse_urls,
        catalog=parse_part(
            CatalogSettings,
            environ,
            source_topics=Path("examples/catalog").absolute(),
            **({"quiet_seconds": QUIET_SECONDS} if isinstance(parse_staging(staging_url), Bucket) else {}),
        ),
        kafka=parse_part(
            KafkaSettings,
            environ,
            bootstrap_servers=f"127.0.0.1:{local.kafka_port}",
            options=_kafka_options(environ),
        ),
        registry=parse_part(
            RegistrySettings, environ, url=f"http://127.0.0.1:{local.registry_port}/apis/ccompat/v7"
        ),
        spark=_spark(environ),
        local=local,
        run=_run(environ, is_bigquery=any(isinstance(each.place, BigQueryProject) for each in warehouses)),
    )


def _local(
    environ: Mapping[str, str], remembered: Mapping[str, int], origins: Mapping[str, str]
) -> LocalSettings:
    declared = {name: each.name for name, each in declared_in(LocalSettings) if name.endswith("_port")}
    fixed = frozenset(name for name, variable in declared.items() if variable in environ)
    known = {name: port for name, port in remembered.items() if name in declared}
    ports = {declared[name]: LOCAL_STACK for name in known if name not in {*fixed}}
    return parse_part(LocalSettings, environ, **known, fixed=fixed, origins=ports | dict(origins))


def _run(environ: Mapping[str, str], *, is_bigquery: bool) -> RunSettings:
    cadence = {name: each.on_bigquery for name, each in declared_in(RunSettings) if each.on_bigquery}
    return parse_part(RunSettings, environ, **(cadence if is_bigquery else {}))


def _kafka_options(environ: Mapping[str, str]) -> dict[str, str]:
    """librdkafka's options: `KBQ_KAFKA_SASL_MECHANISM=PLAIN` sets `sasl.mechanism`. The adapter's allow-list checks the
    names."""
    return {
        name.removeprefix(_KAFKA_PREFIX).lower().replace("_", "."): value
        for name, value in environ.items()
        if name.startswith(_KAFKA_PREFIX) and name not in VARIABLES
    }


def _spark(environ: Mapping[str, str]) -> SparkSettings:
    """Spark's settings: `KBQ_SPARK_CONF_spark.executor.memory=2g` sets `spark.executor.memory`."""
    options = {n.removeprefix(_SPARK_PREFIX): v for n, v in environ.items() if n.startswith(_SPARK_PREFIX)}
    spark = parse_part(SparkSettings, environ, options=options)
    if options and spark.processes:
        raise ConfigurationError(
            f"{_SPARK_PREFIX}{next(iter(options))}: KBQ_SPARK_MASTER={spark.master} does not start Spark",
            next_step="unset it, or set KBQ_SPARK_MASTER=local[*]",
        )
    return spark


def _is_unknown(name: str) -> bool:
    prefixes = (_KAFKA_PREFIX, _SPARK_PREFIX, *_TEST_VARIABLES)
    return name.startswith("KBQ_") and name not in VARIABLES and not name.startswith(prefixes)


def nearest_variable(name: str) -> str:
    """The variable that a misspelled name may mean; "" if none is close."""
    full = name.upper() if name.upper().startswith("KBQ_") else f"KBQ_{name.upper()}"
    return next(iter(difflib.get_close_matches(full, VARIABLES, 1)), "")


def _unknown_variables(unknown: Mapping[str, str]) -> UnknownVariables:
    """The error for unknown variables, given the origin of each."""
    names = [name if place == ENVIRONMENT else f"{name} in {place}" for name, place in unknown.items()]
    near = [found for name in unknown if (found := nearest_variable(name))]
    return UnknownVariables(
        f"unknown variable{'s' * (len(names) > 1)} {', '.join(names)}",
        next_step=f"did you mean {', '.join(near)}?" if near else "`kbq settings` lists the variables",
    )
