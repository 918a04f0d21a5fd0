"""Hides secrets in settings wherever they are shown: `kbq settings`, `kbq doctor`, Spark's logs."""

from __future__ import annotations

import re
from typing import Final

from kbq_assets.core.config.secret_references import is_reference

REDACTED: Final = "***"
#: Marks an option as secret by its name. Also matches misspelled and shortened names.
_NAMES: Final = (
    r"pas+w|passphrase|pass$|pwd|passcode|secret|token|credential|jaas|oauthbearer\.config|key\.pem|[._]key$|"
    r"(access|account|private)[._]?key|signature|^spark\.(executorEnv|yarn\.appMasterEnv|kubernetes\.driverEnv)\."
)
#: Marks a value as secret: `password=…`, a user in an address, or a database's address.
_VALUES: Final = r"(pas+\w*|pwd|secret|token|key|sig)\s*[=:]|://\S+@|jdbc:"
_SECRET_NAME: Final = re.compile(_NAMES, re.IGNORECASE)
_SECRET_VALUE: Final = re.compile(_VALUES, re.IGNORECASE)
_USER: Final = re.compile(r"(?<=://)\S+(?=@)|^[^\s:/]+:[^\s/]\S*(?=@)")
_QUERY: Final = re.compile(r"\?\S*(pas+w|pwd|secret|token|key|sig)\S*", re.IGNORECASE)
#: The same for Java, for `spark.redaction.regex`: Spark searches names and values for it.
SPARK_PATTERN: Final = f"(?i){_NAMES}|{_VALUES}"


def redacted_option(name: str, value: str) -> str:
    """The value of a Kafka or Spark option, hidden if name or value look like a secret. References are not hidden."""
    if not value or is_reference(value):
        return value
    return REDACTED if _SECRET_NAME.search(name) or _SECRET_VALUE.search(value) else value


def redacted_address(text: str) -> str:
    """Comma-separated addresses without users, passwords and secret parameters. Accepts malformed addresses."""
    # A password may contain a comma: split only where another address begins.
    return ",".join(
        _QUERY.sub(f"?{REDACTED}", _USER.sub(REDACTED, each)) for each in re.split(r",(?=\w+://)", text)
    )
