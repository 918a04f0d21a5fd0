"""Parsed addresses of the staging area (`KBQ_STAGING`) and the warehouse (`KBQ_WAREHOUSE`).

    /data/staging, file:///data/staging      Folder
    gs://bucket/prefix                       Bucket
    duckdb:/data/warehouse.duckdb            DuckDbFile
    iceberg:/data/lake                       LakeAddress: Iceberg tables in a folder, with the embedded catalog
    iceberg:gs://bucket/prefix               LakeAddress: in a bucket; the embedded catalog is below KBQ_HOME
    iceberg:NAME                             LakeAddress: the catalog with this name in pyiceberg's own configuration
    bigquery://project?location=EU           BigQueryProject; the default location is US, as in BigQuery
    bigquery://project?datasets=other        jobs run and are billed in `project`, the datasets are in `other`
    bq=bigquery://project, local=duckdb:a    several warehouses, each with a name

Every parser raises ConfigurationError.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, TypeAlias
from urllib.parse import parse_qsl, unquote

from kbq_assets.core.errors import ConfigurationError, InvalidName
from kbq_assets.core.protocol.names import check_warehouse

DEFAULT_LOCATION: Final = "US"
#: Google's rules. A project may begin with its domain: `example.com:project`.
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_PROJECT: Final = re.compile(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]*[a-z0-9]")
_LOCATION: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_STAGING_FORMS: Final = "set KBQ_STAGING to a folder, file:///folder or gs://bucket/prefix"
#: The name and "=" that begin each of several warehouses.
_NAMED: Final = re.compile(r"[A-Za-z0-9_]+=")
_BETWEEN: Final = re.compile(r",(?=\s*[A-Za-z0-9_]*=)")
_SEVERAL: Final = "such as KBQ_WAREHOUSE=bq=bigquery://project,local=duckdb:PATH"
_WAREHOUSE_FORMS: Final = (
    "set KBQ_WAREHOUSE to duckdb:PATH, bigquery://project?location=EU, or iceberg: with a folder, gs://bucket/prefix,"
    " or the name of a catalog in pyiceberg's configuration"
)
#: A catalog in pyiceberg's configuration, whose variables are `PYICEBERG_CATALOG__<NAME>__…`.
_CATALOG: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,62}")


@dataclass(frozen=True)
class Folder:
    """A folder of this machine."""

    path: Path


@dataclass(frozen=True)
class Bucket:
    """A prefix in a bucket; "" is the whole bucket. The prefix does not begin or end with a slash."""

    name: str
    prefix: str


@dataclass(frozen=True)
class DuckDbFile:
    """A DuckDB database."""

    path: Path


@dataclass(frozen=True)
class LakeAddress:
    """Iceberg tables in a folder, in a bucket, or in a catalog from pyiceberg's configuration."""

    folder: Path | None = None
    bucket: Bucket | None = None
    catalog: str = ""


@dataclass(frozen=True)
class BigQueryProject:
    """The project of jobs, the location of jobs and datasets, and the project of datasets if it is another one."""

    project: str
    location: str
    datasets: str = ""

    @property
    def data_project(self) -> str:
        return self.datasets or self.project


@dataclass(frozen=True)
class NamedWarehouse:
    """One warehouse of `KBQ_WAREHOUSE`; a single one may have no name."""

    name: str
    url: str

    @property
    def place(self) -> WarehousePlace:
        return parse_warehouse(self.url)


Staging: TypeAlias = Folder | Bucket
WarehousePlace: TypeAlias = DuckDbFile | BigQueryProject | LakeAddress


def parse_staging(url: str) -> Staging:
    scheme, separator, _ = url.partition("://")
    if not url or (separator and scheme not in ("file", "gs")):
        _refuse(f"staging at {scheme}:// is not supported" if url else "KBQ_STAGING is empty", _STAGING_FORMS)
    if scheme == "gs" and separator:
        return parse_bucket(url)
    return Folder(_folder(url, _STAGING_FORMS))


def parse_bucket(url: str) -> Bucket:
    """The bucket and prefix of a `gs://` URL."""
    scheme, separator, rest = url.partition("://")
    if scheme != "gs" or not separator:
        _refuse(f"{url!r} does not name a bucket", _STAGING_FORMS)
    name, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(name):
        _refuse(f"{name!r} in {url!r} cannot be the name of a bucket", _STAGING_FORMS)
    prefix = prefix.removesuffix("/")
    if prefix and not _is_prefix(prefix):
        _refuse(
            f"{prefix!r} cannot be the prefix of a staging area",
            "parts between single slashes; no '.', '..', '?', '#', '*' or spaces; no parameters",
        )
    return Bucket(name, prefix)


def parse_warehouses(text: str) -> tuple[NamedWarehouse, ...]:
    """The warehouses of `KBQ_WAREHOUSE`, in order: one URL, or several with names."""
    parts = _BETWEEN.split(text)
    if len(parts) == 1 and not _NAMED.match(text):
        parse_warehouse(text)
        return (NamedWarehouse("", text),)
    found = []
    for part in parts:
        name, equals, url = part.strip().partition("=")
        if not equals or not _NAMED.match(part.strip()):
            _refuse(f"{part.strip()!r} in KBQ_WAREHOUSE has no name", _SEVERAL)
        try:
            found.append(NamedWarehouse(check_warehouse(name), url))
        except InvalidName as error:
            _refuse(error.message, error.next_step)
    if len({each.name for each in found}) < len(found) or len({each.place for each in found}) < len(found):
        _refuse("KBQ_WAREHOUSE has a duplicate name or warehouse", _SEVERAL)
    return tuple(found)


def parse_warehouse(url: str) -> WarehousePlace:
    scheme, _, rest = url.partition(":")
    if scheme == "duckdb" and rest:
        return DuckDbFile(Path(rest))
    if scheme == "bigquery":
        return parse_bigquery(url)
    if scheme == "iceberg" and rest:
        return _parse_lake(rest)
    _refuse(f"the warehouse {scheme}: is not supported", _WAREHOUSE_FORMS)


def _parse_lake(place: str) -> LakeAddress:
    scheme, separator, _ = place.partition("://")
    if not separator:
        is_folder = "/" in place or place in (".", "..")
        if not is_folder and not _CATALOG.fullmatch(place):
            _refuse(
                f"{place!r} is neither a folder nor the name of a catalog", "a folder's address has a '/'"
            )
        return (
            LakeAddress(folder=_folder(place, _WAREHOUSE_FORMS)) if is_folder else LakeAddress(catalog=place)
        )
    if scheme == "gs":
        return LakeAddress(bucket=parse_bucket(place))
    if scheme == "file":
        return LakeAddress(folder=_folder(place, _WAREHOUSE_FORMS))
    if scheme in ("s3", "s3a", "s3n"):
        _refuse("an Iceberg warehouse in s3:// is not built yet", _WAREHOUSE_FORMS)
    _refuse(f"an Iceberg warehouse in {scheme}:// is not supported", _WAREHOUSE_FORMS)


def parse_bigquery(url: str) -> BigQueryProject:
    """The project and location of a `bigquery://` URL."""
    scheme, separator, rest = url.partition("://")
    project, _, query = rest.removesuffix("/").partition("?")
    project = project.removesuffix("/")
    if scheme != "bigquery" or not separator or not _PROJECT.fullmatch(project):
        _refuse(f"{url!r} does not name a project", _WAREHOUSE_FORMS)
    parameters = parse_qsl(query, keep_blank_values=True)
    given = dict(parameters)
    if given.keys() - {"location", "datasets"} or len(parameters) > len(given) or (query and not parameters):
        _refuse(f"{url!r} has parameters other than one location and datasets", _WAREHOUSE_FORMS)
    location, datasets = given.get("location", DEFAULT_LOCATION), given.get("datasets", "")
    if not _LOCATION.fullmatch(location):
        _refuse(f"{location!r} in {url!r} is not a location", "such as location=EU or location=europe-west3")
    if "datasets" in given and not _PROJECT.fullmatch(datasets):
        _refuse(f"{datasets!r} in {url!r} is not a project", "such as datasets=my-data")
    return BigQueryProject(project, location, datasets)


def check_places(staging: Staging, warehouse: WarehousePlace) -> None:
    """Raise ConfigurationError for a warehouse that cannot read the staging area."""
    if isinstance(warehouse, BigQueryProject) and not isinstance(staging, Bucket):
        _refuse(
            "BigQuery cannot load files of a local folder",
            "set KBQ_STAGING=gs://bucket/prefix, or KBQ_WAREHOUSE=duckdb:PATH",
        )


def _folder(url: str, forms: str) -> Path:
    """The folder of a path or of `file:///folder`. Refuses addresses with too few slashes instead of reading them as
    paths."""
    scheme, separator, rest = url.partition("://")
    if not separator and not url.startswith(("gs:", "file:")):
        return Path(url)
    if scheme != "file" or not rest.startswith("/"):
        _refuse(f"{url!r} is not the address of a folder", forms)
    return Path(unquote(rest))


def _is_prefix(prefix: str) -> bool:
    parts = prefix.split("/")
    return re.fullmatch(r"[\w./=+@:-]+", prefix) is not None and not {"", ".", ".."} & set(parts)


def _refuse(message: str, next_step: str) -> NoReturn:
    raise ConfigurationError(message, next_step=next_step)
