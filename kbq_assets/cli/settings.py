"""``kbq settings``: lists every variable with its value, its source and its meaning."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import click

from kbq_assets.cli.context import exit_code, json_option, print_error
from kbq_assets.cli.render import console, echo_json, table
from kbq_assets.core.config.redaction import REDACTED, redacted_address, redacted_option
from kbq_assets.core.config.secret_references import is_reference
from kbq_assets.core.config.settings import VARIABLES, Settings, UnknownVariables, values_of
from kbq_assets.core.errors import ConfigurationError

if TYPE_CHECKING:
    from kbq_assets.pipelines.spine import Spine

_KAFKA: Final = "KBQ_KAFKA_"
#: A Markdown link.
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")


#: Shown instead of a secret's value.
HIDDEN: Final = "set"
#: Shown as the source of a variable that is set nowhere.
_DEFAULT: Final = "default"


@click.command()
@click.option("--set", "only_set", is_flag=True, help="Leave out variables that have their defaults.")
@json_option
@click.pass_obj
def settings(open_parts: Callable[[], Spine], only_set: bool, as_json: bool) -> None:
    """List every KBQ_* variable with its value, its source and its meaning. A secret is shown as `set`.

    A variable is set in the environment or in a file (kbq.toml in the current folder, or the file in KBQ_SETTINGS);
    otherwise it has its default. The environment takes precedence. An unknown name is an error, which suggests the
    nearest name.

    Options of librdkafka and Spark keep their own names: KBQ_KAFKA_SASL_MECHANISM is `sasl.mechanism`,
    KBQ_SPARK_CONF_spark.executor.memory is `spark.executor.memory`. Values may be references to a secret:
    env:NAME, file:PATH, gsm:… or plugin:….
    """
    errors: list[ConfigurationError] = []
    found = None
    try:
        found = open_parts().deployment.settings
    except UnknownVariables as error:
        errors, found = [error], error.others
    except ConfigurationError as error:
        errors = [error]
    if found is None:
        # The list helps the user to find the right name.
        _print({name: ("", "") for name in VARIABLES}, as_json)
    else:
        places = origins(found)
        shown = {name: (value, places.get(name, _DEFAULT)) for name, value in effective(found).items()}
        _print({n: row for n, row in shown.items() if not only_set or row[1] != _DEFAULT}, as_json)
        errors += _unknown_options(found)
    for each in errors:
        print_error(each)
    if errors:
        sys.exit(exit_code(errors[0]))


def origins(found: Settings) -> dict[str, str]:
    """The place where each variable is set, by the names in `effective`."""
    return {
        _kafka_name(name.removeprefix(_KAFKA)) if name.startswith(_KAFKA) else name: place
        for name, place in found.local.origins.items()
    }


def _unknown_options(found: Settings) -> list[ConfigurationError]:
    """Errors of Kafka options that no client takes."""
    from kbq_assets.adapters.kafka.options import check_options

    errors = []
    for name in found.kafka.options:
        try:
            check_options({name: ""})
        except ConfigurationError as error:
            errors.append(error)
    return errors


def _kafka_name(option: str) -> str:
    return f"{_KAFKA}{option.upper().replace('.', '_')}"


def effective(found: Settings) -> dict[str, str]:
    """The value of every variable as text, then the options set for Kafka and Spark. Secrets are hidden.

    A misspelled Kafka option may be a secret, so its value is never shown.
    """
    from kbq_assets.adapters.kafka.options import ALLOWED

    values = {name: redacted(name, value) for name, value in values_of(found).items()}
    for name, value in found.kafka.options.items():
        values[_kafka_name(name)] = _option(name, value) if name in ALLOWED else HIDDEN
    for name, value in found.spark.options.items():
        values[f"KBQ_SPARK_CONF_{name}"] = _option(name, value)
    return values


def _option(name: str, value: str) -> str:
    shown = redacted_option(name, value)
    return HIDDEN if shown == REDACTED else shown


def redacted(name: str, value: str) -> str:
    """A declared variable's value, with secrets hidden. A reference to a secret is shown."""
    declared = VARIABLES[name]
    if declared.reference or is_reference(value) or declared.show is not str:
        return value  # `show` hides secrets itself
    return HIDDEN if value and declared.secret else redacted_address(value)


def _meaning(name: str) -> str:
    """A variable's meaning, without links to the documentation."""
    return _LINK.sub(r"\1", VARIABLES[name].meaning) if name in VARIABLES else ""


def _print(rows: Mapping[str, tuple[str, str]], as_json: bool) -> None:
    if as_json:
        listed = [
            {"name": name, "value": value, "from": place, "meaning": _meaning(name)}
            for name, (value, place) in rows.items()
        ]
        echo_json(listed)
        return
    shown = table("variable", "value", "from", "meaning (default)")
    shown.columns[0].no_wrap = True
    for name, (value, place) in rows.items():
        shown.add_row(name, value, place, _meaning(name))
    console().print(shown)
