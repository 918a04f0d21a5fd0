"""Settings without their secrets, for all that shows them: `kbq settings`, `kbq doctor`, Spark's logs."""

from __future__ import annotations

import re
from typing import Final

from kbq_assets.core.config.secret_references import is_reference

REDACTED: Final = "***"
#: Found in the name of an option, the option is a secret. It also matches names that are misspelled or shortened.
_NAMES: Final = (
    r"pas+w|passphrase|pass$|pwd|passcode|secret|token|credential|jaas|oauthbearer\.config|key\.pem|[._]key$|"
    r"(access|account|private)[._]?key|signature|^spark\.(executorEnv|yarn\.appMasterEnv|kubernetes\.driverEnv)\."
)
#: Found in a value, the value holds a secret: `password=…`, a user in an address, or a database's address.
_VALUES: Final = r"(pas+\w*|pwd|secret|token|key|sig)\s*[=:]|://\S+@|jdbc:"
_SECRET_NAME: Final = re.compile(_NAMES, re.IGNORECASE)
_SECRET_VALUE: Final = re.compile(_VALUES, re.IGNORECASE)
_USER: Final = re.compile(r"(?<=://)\S+(?=@)|^[^\s:/]+:[^\s/]\S*(?=@)")
_QUERY: Final = re.compile(r"\?\S*(pas+w|pwd|secret|token|key|sig)\S*", re.IGNORECASE)
#: Java's form, for `spark.redaction.regex`: Spark searches names and values for it.
SPARK_PATTERN: Final = f"(?i){_NAMES}|{_VALUES}"


def redacted_option(name: str, value: str) -> str:
    """The value of an option of Kafka or Spark, hidden if name or value look like a secret. References are shown."""
    if not value or is_reference(value):
        return value
    return REDACTED if _SECRET_NAME.search(name) or _SECRET_VALUE.search(value) else value


def redacted_address(text: str) -> str:
    """Addresses, separated by commas, without users, passwords and secret parameters. They may be malformed."""
    # A password may contain a comma: split only where another address begins.
    return ",".join(
        _QUERY.sub(f"?{REDACTED}", _USER.sub(REDACTED, each)) for each in re.split(r",(?=\w+://)", text)
    )
