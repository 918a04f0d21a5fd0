"""An admin client that quickly detects that all brokers are down."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kbq_assets.adapters.kafka.errors import is_refusal

#: The client logs each failed connection, a dozen per second. The error quotes the last one.
_LOGGER: Final = logging.getLogger("kbq.kafka.connections")
_LOGGER.setLevel(logging.CRITICAL)
#: If all brokers are down for this long, give up. A broker that is only slow gets the caller's full time.
DOWN_SECONDS: Final = 5.0
#: A broker counts as down if it does not accept a connection and answer the first request in this time. The client then
#: tries again. A user's option of this name takes precedence. With librdkafka's 30 s, every command would wait so long.
_SETUP: Final[Mapping[str, Any]] = {"socket.connection.setup.timeout.ms": "6000"}
#: Seconds between polls of the client's events. This does not delay an answer.
_POLL_SECONDS: Final = 0.1


class BrokerMetadata:
    """Reads metadata with ``client``, which other code may use for its requests. Raises KafkaException for wrong
    options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        self._open()

    def _open(self) -> None:
        self._all_down = False
        self._last: KafkaError | None = None
        own: dict[str, Any] = {**_SETUP, **self._options, "error_cb": self._notice}
        self.client = AdminClient(own, logger=_LOGGER)

    def read(self, seconds: float) -> Any:
        """Topics and brokers. Raises KafkaException if no broker answers within ``seconds``, or if all are down."""
        answer: Future[Any] = Future()
        # A daemon thread ends after its timeout, and does not delay a process that ends before.
        threading.Thread(target=self._ask, args=(answer, seconds), name="kbq-metadata", daemon=True).start()
        started = time.monotonic()
        while not (self._all_down and time.monotonic() - started >= DOWN_SECONDS):
            try:
                found = answer.result(_POLL_SECONDS)
            except TimeoutError:
                self.client.poll(0)
            else:
                self.client.poll(0)  # ignore what happened before the answer
                self._all_down = False
                return found
        code, reason = KafkaError._ALL_BROKERS_DOWN, "all brokers are down"
        if self._last is not None:
            code = self._last.code() if is_refusal(self._last) else code
            reason += f": {self._last.str()}"
        self._open()  # a client reports this only once until a broker is up again
        raise KafkaException(KafkaError(code, reason))

    def _ask(self, answer: Future[Any], seconds: float) -> None:
        try:
            answer.set_result(self.client.list_topics(timeout=seconds))
        except Exception as error:  # raised by `answer.result`
            answer.set_exception(error)

    def _notice(self, error: KafkaError) -> None:
        """Note an event of the client, which `poll` delivers."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._all_down = True
        else:
            self._last = error
