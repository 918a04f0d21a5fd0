"""Renders the Helm chart with Helm, and keeps the result: rendering takes Helm, whose build takes minutes.

``python -m kbq_assets_tests.google.helm HELM`` writes `RENDERED` again after a change of the chart.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

CHART = Path(__file__).parents[2] / "deploy" / "helm"
RENDERED = Path(__file__).parent / "helm_rendered.yaml"
VALUES = CHART / "example-values.yaml"
_RELEASE = ("kbq", str(CHART), "-n", "kbq", "-f", str(VALUES), "--kube-version", "1.30.0")


def digest() -> str:
    """The first line of what was rendered from the chart as it is."""
    found = hashlib.sha256()
    for path in sorted(each for each in CHART.rglob("*") if each.is_file()):
        found.update(path.relative_to(CHART).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"# chart {found.hexdigest()}\n"


def rendered(helm: str, *options: str) -> str:
    """What Helm makes of the chart, after its lint. Raises CalledProcessError."""
    subprocess.run([helm, "lint", "--strict", str(CHART), "-f", str(VALUES)], check=True, capture_output=True)
    made = subprocess.run([helm, "template", *_RELEASE, *options], check=True, capture_output=True, text=True)
    return digest() + made.stdout


if __name__ == "__main__":
    RENDERED.write_text(rendered(sys.argv[1]), encoding="utf-8")
