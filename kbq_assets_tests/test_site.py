"""docs/ builds as a site: every page is in its navigation, no anchor leads nowhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kbq_assets.adapters.kafka.options import check_options
from kbq_assets.adapters.settings_file import read_settings
from kbq_assets.core.config.settings import parse_settings

REPOSITORY = Path(__file__).parents[1]


@pytest.mark.thorough
def test_the_documents_build_as_a_searchable_site(tmp_path: Path) -> None:
    # No -q: it hides warnings from --strict.
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    index = (tmp_path / "search" / "search_index.json").read_text(encoding="utf-8")
    assert all(f"{page}/" in index for page in ("first-topic", "glossary", "troubleshooting", "recipes"))


RECIPES = (REPOSITORY / "docs" / "recipes.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("recipe", re.findall(r"^```toml\n(.*?)^```", RECIPES, re.MULTILINE | re.DOTALL))
def test_each_recipe_is_a_settings_file_whose_options_exist(tmp_path: Path, recipe: str) -> None:
    file = tmp_path / "kbq.toml"
    file.write_text(recipe, encoding="utf-8")
    settings = parse_settings(read_settings({"KBQ_SETTINGS": str(file)}))
    assert settings.kafka.options["security.protocol"] == "SASL_SSL"
    check_options(settings.kafka.options)
