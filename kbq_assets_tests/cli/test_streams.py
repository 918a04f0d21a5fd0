"""Commands whose caller has closed standard streams, as some daemons do for their children."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kbq_assets_tests.fixtures.variables import Variables

_KBQ = f"{sys.executable} -c 'from kbq_assets.definitions import main; main()'"
_DESCRIPTORS = """
import os
import subprocess
import sys
from kbq_assets.cli.streams import open_closed_streams
open_closed_streams()
print("lost")
print("lost", file=sys.stderr)
os.write(1, b"lost")
subprocess.run(["/bin/echo", "lost"], check=True)
sys.stdin.read()
with open(sys.argv[1], "w") as file:
    print(file.fileno(), file=file)
"""


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_runs_without_its_streams(closed: str, tmp_path: Path, variables: Variables) -> None:
    variables.update({"KBQ_HOME": str(tmp_path / "home"), "KBQ_SPARK_MASTER": "processes[1]"})
    command = f"{_KBQ} extract {closed}; echo $? > {tmp_path}/code"
    (tmp_path / "topics.txt").write_text("")
    variables["KBQ_SOURCE_TOPICS"] = str(tmp_path / "topics.txt")
    subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, check=True)
    assert (tmp_path / "code").read_text() == "0\n"


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_DESCRIPTORS)
    command = f"{sys.executable} {tmp_path}/program.py {tmp_path}/file <&- >&- 2>&-"
    subprocess.run(["sh", "-c", command], check=True)
    assert int((tmp_path / "file").read_text()) > 2
