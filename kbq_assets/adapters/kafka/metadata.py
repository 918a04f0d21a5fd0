"""An admin client that soon knows whether all brokers are down."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

#: The client logs each connection that fails, a dozen a second. The error quotes the last one.
_LOGGER: Final = logging.getLogger("kbq.kafka.connections")
_LOGGER.setLevel(logging.CRITICAL)
#: If all brokers are down after this time, they are given up. One that is only slow has the caller's whole time.
DOWN_SECONDS: Final = 5.0
#: A broker is down if it does not accept a connection, and answer the first request there, in this time; the client
#: tries again. The user's option of this name prevails. With librdkafka's 30 s, every command would wait as long.
_SETUP: Final[Mapping[str, Any]] = {"socket.connection.setup.timeout.ms": "6000"}
#: Between looks at the client's events; an answer is not delayed.
_POLL_SECONDS: Final = 0.1


class BrokerMetadata:
    """Reads metadata by ``client``, which others use for their requests. Raises KafkaException for wrong options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._all_down = False
        self._last = ""
        own: dict[str, Any] = {**_SETUP, **options, "error_cb": self._notice}
        self.client = AdminClient(own, logger=_LOGGER)

    def read(self, seconds: float) -> Any:
        """Topics and brokers. Raises KafkaException if no broker answers for ``seconds``, or if all are down."""
        self.client.poll(0)  # what happened to connections before does not count
        self._all_down = False
        answer: Future[Any] = Future()
        # A daemon: it ends with its own time, and delays no process that ends before.
        threading.Thread(target=self._ask, args=(answer, seconds), name="kbq-metadata", daemon=True).start()
        started = time.monotonic()
        while not (self._all_down and time.monotonic() - started >= DOWN_SECONDS):
            try:
                return answer.result(_POLL_SECONDS)
            except TimeoutError:
                self.client.poll(0)
        reason = f"all brokers are down: {self._last}".removesuffix(": ")
        raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN, reason))

    def _ask(self, answer: Future[Any], seconds: float) -> None:
        try:
            answer.set_result(self.client.list_topics(timeout=seconds))
        except Exception as error:  # raised where the answer is waited for
            answer.set_exception(error)

    def _notice(self, error: KafkaError) -> None:
        """Take an event of the client; `poll` delivers them."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._all_down = True
        else:
            self._last = error.str()
