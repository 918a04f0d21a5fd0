"""``kbq settings``: every variable with its meaning and its value."""

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
from kbq_assets.core.config.settings import VARIABLES, Settings, values_of
from kbq_assets.core.errors import ConfigurationError

if TYPE_CHECKING:
    from kbq_assets.pipelines.spine import Spine

#: A link of the documentation.
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@click.command()
@json_option
@click.pass_obj
def settings(open_parts: Callable[[], Spine], as_json: bool) -> None:
    """List every KBQ_* variable with its value and meaning; secrets are hidden.

    Options of librdkafka and Spark keep their own names: KBQ_KAFKA_SASL_MECHANISM is `sasl.mechanism`,
    KBQ_SPARK_CONF_spark.executor.memory is `spark.executor.memory`. Values may be references to a secret:
    env:NAME, file:PATH, gsm:… or plugin:….
    """
    try:
        values = effective(open_parts().deployment.settings)
    except ConfigurationError as error:
        # The list may show the right name.
        _print({name: "" for name in VARIABLES}, as_json)
        print_error(error)
        sys.exit(exit_code(error))
    _print(values, as_json)


def effective(found: Settings) -> dict[str, str]:
    """The value of every variable as text, secrets redacted, then the options set for Kafka and Spark.

    KBQ does not know what a misspelled option of Kafka holds: it never shows its value.
    """
    from kbq_assets.adapters.kafka.options import ALLOWED

    values = {name: redacted(name, value) for name, value in values_of(found).items()}
    for name, value in found.kafka.options.items():
        shown = redacted_option(name, value) if name in ALLOWED else REDACTED
        values[f"KBQ_KAFKA_{name.upper().replace('.', '_')}"] = shown
    for name, value in found.spark.options.items():
        values[f"KBQ_SPARK_CONF_{name}"] = redacted_option(name, value)
    return values


def redacted(name: str, value: str) -> str:
    """A declared variable's value without secrets. A reference to a secret is shown."""
    declared = VARIABLES[name]
    if declared.reference or is_reference(value) or declared.show is not str:
        return value  # `show` hides secrets itself
    return REDACTED if value and declared.secret else redacted_address(value)


def _meaning(name: str) -> str:
    """A variable's meaning without its links, which lead to pages of the documentation."""
    return _LINK.sub(r"\1", VARIABLES[name].meaning) if name in VARIABLES else ""


def _print(values: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        echo_json(
            [{"name": name, "value": value, "meaning": _meaning(name)} for name, value in values.items()]
        )
        return
    shown = table("variable", "value", "meaning (default)")
    shown.columns[0].no_wrap = True
    for name, value in values.items():
        shown.add_row(name, value, _meaning(name))
    console().print(shown)
