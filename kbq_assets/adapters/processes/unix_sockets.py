"""Unix sockets, whose paths the system limits to about a hundred bytes."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

from kbq_assets.core.errors import ConfigurationError


def require_sockets() -> None:
    """Raise ConfigurationError if the path of the folder for temporary files is too long for a socket, or if that
    folder allows none."""
    with tempfile.NamedTemporaryFile() as file:
        path = file.name
    try:
        with socket.socket(socket.AF_UNIX) as candidate:
            candidate.bind(path)
    except OSError as error:
        raise ConfigurationError(
            f"no socket can be made in {Path(path).parent}, the folder for temporary files: {error}",
            next_step="set TMPDIR to a local folder with a shorter path, such as /tmp",
        ) from error
    finally:
        Path(path).unlink(missing_ok=True)
