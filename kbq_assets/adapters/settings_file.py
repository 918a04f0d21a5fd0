"""Settings from outside the environment: a file with the same variables, and the ports that the local stack uses.

    # kbq.toml
    KBQ_KAFKA_BOOTSTRAP_SERVERS = "broker-1:9092"
    KBQ_RUN_SECONDS = 300

Precedence: the environment, the file, the remembered ports, the defaults.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kbq_assets.core.config.parts import ENVIRONMENT
from kbq_assets.core.config.settings import nearest_variable
from kbq_assets.core.errors import ConfigurationError

#: Read from the current folder if `KBQ_SETTINGS` names no other file.
SETTINGS_FILE: Final = "kbq.toml"
_PORTS: Final = "local.json"


def read_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment merged over its settings file. Raises ConfigurationError if the file is not valid."""
    return read_with_origins(environ)[0]


def read_with_origins(environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The environment merged over its settings file, and the origin of each variable: the environment, the file's path,
    or both. Raises ConfigurationError if the file is not valid."""
    named = environ.get("KBQ_SETTINGS", "")
    origins = {name: ENVIRONMENT for name in environ if name.startswith("KBQ_")}
    path = Path(named or SETTINGS_FILE)
    if not named and not path.is_file():
        return dict(environ), origins
    found = _parsed(path)
    for name in found:
        origins[name] = f"{ENVIRONMENT}, not {path}" if name in environ else str(path)
    return {**found, **environ, "KBQ_SETTINGS": str(path.absolute())}, origins


def _parsed(path: Path) -> dict[str, str]:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # 5,000 digits raise a plain ValueError
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(
            f"the settings in {path} cannot be read: {why}", next_step='write one KBQ_NAME = "value" per line'
        ) from error
    for name, value in found.items():
        is_plain = isinstance(value, str | int | float)
        if not name.startswith("KBQ_") or name == "KBQ_SETTINGS" or not is_plain:
            raise ConfigurationError(f"{path}: {name} is not a setting", next_step=_meant(name, value))
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in found.items()
    }


def _meant(name: str, value: object) -> str:
    """The next step for a key that is not a setting."""
    if name.startswith("KBQ_SPARK_CONF_") and isinstance(value, dict):
        return 'write the whole name in quotes: "KBQ_SPARK_CONF_spark.executor.memory" = "2g"'
    near = nearest_variable(name)
    return f"did you mean {near}?" if near not in ("", name) else "`kbq settings` lists the variables"


def setting_line(name: str, value: str) -> str:
    """A line of a settings file. TOML's strings are like JSON's, except that TOML requires DEL to be escaped."""
    quoted = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"{name} = {quoted}\n"


def remembered_ports(environ: Mapping[str, str]) -> dict[str, int]:
    """The ports that the local stack in KBQ_HOME last chose; {} if it never ran."""
    try:
        found = json.loads(ports_file(Path(environ.get("KBQ_HOME", ".kbq"))).read_text(encoding="utf-8"))
        return {str(name): int(port) for name, port in found.items()}
    except (OSError, ValueError, AttributeError, TypeError, OverflowError, RecursionError):
        return {}  # the next `kbq local up` writes the file again


def remember_ports(home: Path, ports: Mapping[str, int]) -> None:
    """Store the ports of the local stack in ``home``."""
    path = ports_file(home)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(ports), encoding="utf-8")
    temporary.replace(path)


def ports_file(home: Path) -> Path:
    return home / "run" / _PORTS
