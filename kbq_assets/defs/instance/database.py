"""Where Dagster keeps runs and events: SQLite below its home, or a Postgres whose address stands in no file.

The configuration names the variable `KBQ_DAGSTER_POSTGRES_URL`; whoever starts Dagster's processes puts the resolved
address there, and Dagster's own commands, told to use the same home, find theirs there too.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import dagster as dg
from dagster._core.instance import InstanceRef
from sqlalchemy.exc import SQLAlchemyError

from kbq_assets.adapters.secrets import resolve
from kbq_assets.core.errors import ConfigurationError, Unavailable

VARIABLE: Final = "KBQ_DAGSTER_POSTGRES_URL"
#: SQLAlchemy's default driver is another than the one that dagster-postgres brings.
_DRIVER: Final = "postgresql+psycopg2"


@dataclass(frozen=True)
class DagsterDatabase:
    """Dagster's database. ``reference`` is its address, `env:NAME`, `file:PATH`, or "" for SQLite."""

    reference: str = ""

    @property
    def configuration(self) -> str:
        """The shipped file that becomes `dagster.yaml`."""
        return "dagster-postgres.yaml" if self.reference else "dagster.yaml"

    def url(self) -> str:
        """The address, with the driver that is installed; "" for SQLite. Raises ConfigurationError."""
        if not self.reference:
            return ""
        if importlib.util.find_spec("dagster_postgres") is None:
            raise ConfigurationError(
                f"{VARIABLE} is set, but dagster-postgres is not installed",
                next_step="pip install 'kbq-assets[postgres]'",
            )
        scheme, separator, rest = resolve(VARIABLE, self.reference).partition("://")
        if not separator or scheme.partition("+")[0] not in ("postgres", "postgresql"):
            raise ConfigurationError(
                f"{VARIABLE} is no address of a Postgres",
                next_step="set it like postgresql://user:password@host:5432/dagster",
            )
        return f"{_DRIVER}://{rest}"

    def environ(self) -> Mapping[str, str]:
        """What Dagster's processes must find in their environment."""
        url = self.url()
        return {VARIABLE: url} if url else {}

    @contextmanager
    def open(self, folder: Path) -> Iterator[dg.DagsterInstance]:
        """The instance of a Dagster home. Raises ConfigurationError; Unavailable, also when it goes away meanwhile."""
        url = self.url()
        storage: dict[str, Any] = {"storage": {"postgres": {"postgres_url": url}}} if url else {}
        try:
            reference = InstanceRef.from_dir(str(folder), overrides=storage)
            with dg.DagsterInstance.from_ref(reference) as instance:
                yield instance
        except _database_errors() as error:
            raise Unavailable(
                f"Dagster's database does not answer: {error.__cause__ or error}",
                next_step=f"look at the server that {VARIABLE} names" if url else f"look at {folder}",
            ) from error


def _database_errors() -> tuple[type[Exception], ...]:
    if importlib.util.find_spec("dagster_postgres") is None:
        return (SQLAlchemyError,)
    from dagster_postgres.utils import DagsterPostgresException

    return (SQLAlchemyError, DagsterPostgresException)
