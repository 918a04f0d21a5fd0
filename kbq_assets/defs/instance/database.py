"""Dagster's database for runs and events: SQLite below its home, or Postgres.

The address of Postgres is in no file: the configuration only names the variable `KBQ_DAGSTER_POSTGRES_URL`. It has the
resolved address in this process and in those that it starts. For Dagster's own commands, you set it.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import dagster as dg
from sqlalchemy.exc import SQLAlchemyError

from kbq_assets.adapters.secrets import resolve
from kbq_assets.core.errors import ConfigurationError, Unavailable

VARIABLE: Final = "KBQ_DAGSTER_POSTGRES_URL"
#: dagster-postgres installs a driver that is not SQLAlchemy's default.
_DRIVER: Final = "postgresql+psycopg2"


@dataclass(frozen=True)
class DagsterDatabase:
    """Dagster's database. ``reference`` is its address, `env:NAME` or `file:PATH`; "" for SQLite."""

    reference: str = ""

    @property
    def configuration(self) -> str:
        """The name of the shipped file that becomes `dagster.yaml`."""
        return "dagster-postgres.yaml" if self.reference else "dagster.yaml"

    def url(self) -> str:
        """The address with the installed driver; "" for SQLite. Raises ConfigurationError."""
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
                f"{VARIABLE} is not the address of a Postgres database",
                next_step="set it like postgresql://user:password@host:5432/dagster",
            )
        return f"{_DRIVER}://{rest}"

    def environ(self) -> Mapping[str, str]:
        """Environment variables that Dagster's processes need."""
        url = self.url()
        return {VARIABLE: url} if url else {}

    @contextmanager
    def open(self, folder: Path) -> Iterator[dg.DagsterInstance]:
        """The instance of a Dagster home. Raises ConfigurationError, and Unavailable (also inside the block)."""
        url = self.url()
        os.environ.update(self.environ())
        try:
            with dg.DagsterInstance.from_config(str(folder)) as instance:
                yield instance
        except _database_errors() as error:
            raise Unavailable(
                f"Dagster's database does not answer: {error.__cause__ or error}",
                next_step=f"check the server that {VARIABLE} names" if url else f"check {folder}",
            ) from error


def _database_errors() -> tuple[type[Exception], ...]:
    if importlib.util.find_spec("dagster_postgres") is None:
        return (SQLAlchemyError,)
    from dagster_postgres.utils import DagsterPostgresException

    return (SQLAlchemyError, DagsterPostgresException)
