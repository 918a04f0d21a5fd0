"""``kbq settings``: every variable, what it means, what it is here."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import click

from kbq_assets.cli.context import exit_code, json_option, tell
from kbq_assets.cli.render import console, echo_json, table
from kbq_assets.core.config.references import is_reference
from kbq_assets.core.config.settings import VARIABLES, Settings
from kbq_assets.core.errors import ConfigurationError

if TYPE_CHECKING:
    from kbq_assets.pipelines.platform import Platform

VALUES: Final[Mapping[str, Callable[[Settings], object]]] = {
    "KBQ_HOME": lambda s: s.home,
    "KBQ_STAGING": lambda s: s.staging_url,
    "KBQ_WAREHOUSE": lambda s: s.warehouse_url,
    "KBQ_SOURCE_TOPICS": lambda s: s.source_topics,
    "KBQ_ENV": lambda s: s.env,
    "KBQ_DATASET": lambda s: s.dataset,
    "KBQ_KAFKA_BOOTSTRAP_SERVERS": lambda s: s.kafka.bootstrap_servers,
    "KBQ_READER": lambda s: s.kafka.reader,
    "KBQ_REGISTRY_URL": lambda s: s.registry.url,
    "KBQ_REGISTRY_USERNAME": lambda s: s.registry.username,
    "KBQ_REGISTRY_PASSWORD": lambda s: s.registry.password,
    "KBQ_REGISTRY_TOKEN": lambda s: s.registry.token,
    "KBQ_REGISTRY_CA_FILE": lambda s: s.registry.ca_file,
    "KBQ_REGISTRY_CERTIFICATE_FILE": lambda s: s.registry.certificate_file,
    "KBQ_REGISTRY_KEY_FILE": lambda s: s.registry.key_file,
    "KBQ_REGISTRY_KEY_PASSWORD": lambda s: s.registry.key_password,
    "KBQ_REGISTRY_TIMEOUT_SECONDS": lambda s: s.registry.timeout_seconds,
    "KBQ_EXTRACT_CREDENTIALS": lambda s: s.google.extract_credentials,
    "KBQ_LOAD_CREDENTIALS": lambda s: s.google.load_credentials,
    "KBQ_GCS_ENDPOINT": lambda s: s.google.gcs_endpoint,
    "KBQ_BIGQUERY_ENDPOINT": lambda s: s.google.bigquery_endpoint,
    "KBQ_SPARK_MASTER": lambda s: s.spark.master,
    "KBQ_LOCAL_KAFKA_PORT": lambda s: s.local.kafka_port,
    "KBQ_LOCAL_CONTROLLER_PORT": lambda s: s.local.controller_port,
    "KBQ_LOCAL_REGISTRY_PORT": lambda s: s.local.registry_port,
    "KBQ_RUN_SECONDS": lambda s: s.run.run_seconds,
    "KBQ_RUN_RECORDS": lambda s: s.run.run_records or "",
    "KBQ_RUN_BYTES": lambda s: s.run.run_bytes or "",
    "KBQ_COST_FUNCTION": lambda s: s.run.cost_function,
    "KBQ_WINDOW_SECONDS": lambda s: s.run.window_seconds,
    "KBQ_WINDOW_RECORDS": lambda s: s.run.window_records,
    "KBQ_WINDOW_BYTES": lambda s: s.run.window_bytes,
    "KBQ_FILE_BYTES": lambda s: s.run.file_bytes,
    "KBQ_LOAD_WAIT_SECONDS": lambda s: s.run.load_wait_seconds,
    "KBQ_POLL_SECONDS": lambda s: s.run.poll_seconds,
    "KBQ_EXTRACT_SECONDS": lambda s: s.run.extract_seconds,
    "KBQ_LOAD_SECONDS": lambda s: s.run.load_seconds,
    "KBQ_CLEAN_MINUTES": lambda s: s.run.clean_minutes,
    "KBQ_DAGSTER_POSTGRES_URL": lambda s: s.dagster.postgres_url,
    "KBQ_DAGSTER_RUN_DAYS": lambda s: s.dagster.run_days,
    "KBQ_PII_KEYS": lambda s: s.pii_keys,
    "KBQ_PII_SEAL_KEY": lambda s: s.pii_seal_key,
    "KBQ_RECONCILE_DAYS": lambda s: s.run.reconcile_days,
    "KBQ_NOTIFY": lambda s: ",".join(spec.shown for spec in s.notify.notifiers),
    "KBQ_NOTIFY_REPEAT_HOURS": lambda s: s.notify.repeat_hours,
    "KBQ_NOTIFY_SECONDS": lambda s: s.notify.every_seconds,
    "KBQ_WEBHOOK_SECRET": lambda s: s.notify.webhook_secret,
    "KBQ_UI_URL": lambda s: s.notify.ui_url,
    "KBQ_SMTP_HOST": lambda s: s.notify.smtp.host,
    "KBQ_SMTP_PORT": lambda s: s.notify.smtp.port,
    "KBQ_SMTP_SECURITY": lambda s: s.notify.smtp.security,
    "KBQ_SMTP_USERNAME": lambda s: s.notify.smtp.username,
    "KBQ_SMTP_PASSWORD": lambda s: s.notify.smtp.password,
    "KBQ_SMTP_FROM": lambda s: s.notify.smtp.sender,
    "KBQ_SMTP_CA_FILE": lambda s: s.notify.smtp.ca_file,
    "KBQ_SERVE_SECONDS": lambda s: s.service.look_seconds,
    "KBQ_REPORTERS": lambda s: ",".join(choice.name for choice in s.service.reporters),
    "KBQ_REPORT_SECONDS": lambda s: s.service.report_seconds,
    "KBQ_LAG_LABEL": lambda s: s.service.lag_label,
    "KBQ_PARTITION_KEYS": lambda s: s.run.partition_keys,
}
_SECRET = re.compile(
    r"password|passphrase|secret|token$|credential|jaas|oauthbearer\.config|key\.pem|[._]key$", re.IGNORECASE
)
#: What these hold is a reference, or settings refuse it.
_REFERENCES: Final = ("KBQ_EXTRACT_CREDENTIALS", "KBQ_LOAD_CREDENTIALS", "KBQ_PII_KEYS", "KBQ_PII_SEAL_KEY")
#: `user:password@` in an address.
_USER_INFO = re.compile(r"(?<=://)[^/@]+(?=@)")
REDACTED: Final = "***"


@click.command()
@json_option
@click.pass_obj
def settings(open_platform: Callable[[], Platform], as_json: bool) -> None:
    """List every KBQ_* variable with its meaning and its value here; secrets are not shown.

    Options of librdkafka and Spark go by their own names: KBQ_KAFKA_SASL_MECHANISM is `sasl.mechanism`,
    KBQ_SPARK_CONF_spark.executor.memory is `spark.executor.memory`. Values may be references to a secret:
    env:NAME, file:PATH, gsm:… or plugin:….
    """
    try:
        values = effective(open_platform().settings)
    except ConfigurationError as error:
        # What is wrong may be found in the list.
        _print({name: "" for name in VARIABLES}, as_json)
        tell(error)
        sys.exit(exit_code(error))
    _print(values, as_json)


def effective(found: Settings) -> dict[str, str]:
    """Every variable's value as text, secrets redacted; then the options of Kafka and Spark that are set."""
    values = {name: redacted(name, str(value(found))) for name, value in VALUES.items()}
    for name, value in found.kafka.options.items():
        values[f"KBQ_KAFKA_{name.upper().replace('.', '_')}"] = redacted(name, value)
    for name, value in found.spark.options.items():
        values[f"KBQ_SPARK_CONF_{name}"] = redacted(name, value)
    return values


def redacted(name: str, value: str) -> str:
    """A value that may be shown. A reference to a secret is not the secret."""
    if name in _REFERENCES:
        return value
    if value and _SECRET.search(name.replace("_", ".")) and not is_reference(value):
        return REDACTED
    return _USER_INFO.sub(REDACTED, value)


def _print(values: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        echo_json(
            [
                {"name": name, "value": value, "meaning": VARIABLES.get(name, "")}
                for name, value in values.items()
            ]
        )
        return
    shown = table("variable", "value", "meaning (default)")
    shown.columns[0].no_wrap = True
    for name, value in values.items():
        shown.add_row(name, value, VARIABLES.get(name, ""))
    console().print(shown)
