"""Java trusts the same authorities as Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kbq_assets.adapters.java import find_java
from kbq_assets.local.stack.truststore import PASSWORD, trusted_authorities, write_truststore


@pytest.mark.thorough
@pytest.mark.parametrize("count", [0, 1, 3])
def test_java_reads_every_authority_that_python_trusts(tmp_path: Path, count: int) -> None:
    authorities = trusted_authorities()[:count]
    write_truststore(tmp_path / "trust.jks", authorities)
    keytool = find_java(tmp_path / "java").executable.resolve().with_name("keytool")
    command: list[str | Path] = [
        keytool,
        "-list",
        "-rfc",
        "-keystore",
        tmp_path / "trust.jks",
        "-storepass",
        PASSWORD,
    ]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert listed.count("BEGIN CERTIFICATE") == len(authorities)


def test_the_options_name_the_file_that_was_written(tmp_path: Path) -> None:
    options = write_truststore(tmp_path / "trust.jks", [])
    assert f"-Djavax.net.ssl.trustStore={tmp_path / 'trust.jks'}" in options
    assert (tmp_path / "trust.jks").is_file()
