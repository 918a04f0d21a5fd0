"""The local Google servers for tests: an endpoint, a client, the recorded requests, and the faults to inject."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient

from kbq_assets_tests.fixtures.local_stack import free_ports
from kbq_assets_tests.google.bigquery_proxy import BigQueryJudge
from kbq_assets_tests.google.faults import Faults, Request
from kbq_assets_tests.google.gcs_proxy import GcsJudge
from kbq_assets_tests.google.install import Program
from kbq_assets_tests.google.processes import ServerProcess
from kbq_assets_tests.google.reverse_proxy import Proxy, Upstream

PROJECT = "kbq-test"
#: For tests that read everything in a project: the hundreds of datasets of the others would take minutes. One for all
#: of these, as local-bigquery gets slow with many projects.
QUIET_PROJECT = "kbq-test-quiet"


class GoogleServer:
    """A server behind its proxy. ``endpoint`` is the proxy's, ``direct_endpoint`` the uncorrected server's."""

    def __init__(self, proxy: Proxy, process: ServerProcess, port: int) -> None:
        self._proxy, self.process, self.port = proxy, process, port
        self.endpoint, self.direct_endpoint = proxy.endpoint, f"http://127.0.0.1:{port}"
        self._options = {"api_endpoint": self.endpoint}
        self._names = (f"{os.getpid()}_{number}" for number in itertools.count(1))

    def client(self) -> Any:
        """The real client."""
        raise NotImplementedError

    @property
    def faults(self) -> Faults:
        """What shall happen to the next requests."""
        return self._proxy.faults

    @property
    def requests(self) -> list[Request]:
        """All requests, in the order of their arrival; a test may clear the list."""
        return self._proxy.requests

    @property
    def watchers(self) -> list[Callable[[Request], None]]:
        """Told of every request on its arrival; a test adds its own and takes them away."""
        return self._proxy.watchers

    def requested(self, method: str) -> list[Request]:
        """The requests of one method."""
        return [request for request in list(self.requests) if request.method == method]

    def close(self) -> None:
        """Stop everything."""
        if "_client" in vars(self):
            self.client().close()
        self._proxy.close()
        self.process.kill()

    def start(self) -> None:
        """Start the server, or start it again on its data."""
        self.process.start()
        self._proxy.down = False

    def kill(self) -> None:
        """``kill -9`` of the server; requests are hung up on until it is started again."""
        self._proxy.down = True
        self.process.kill()

    def restart(self) -> None:
        """``kill -9``, then start again on the same port and data."""
        self.kill()
        self.start()


class GcsServer(GoogleServer):
    """Cloud Storage."""

    def __init__(self, proxy: Proxy, process: ServerProcess, port: int, judge: GcsJudge) -> None:
        super().__init__(proxy, process, port)
        #: Permissions that callers lack; a test may change the set.
        self.denied = judge.denied

    @cached_property
    def _client(self) -> StorageClient:
        return StorageClient(PROJECT, AnonymousCredentials(), client_options=self._options)

    def client(self) -> StorageClient:
        """The real client, without credentials; one for all, closed with the server."""
        return self._client

    def new_bucket(self) -> str:
        """A bucket of the test's own."""
        name = f"kbq_{next(self._names)}"
        self.client().create_bucket(name)
        return name


class BigQueryServer(GoogleServer):
    """BigQuery."""

    project = PROJECT

    def __init__(self, proxy: Proxy, process: ServerProcess, port: int, judge: BigQueryJudge) -> None:
        super().__init__(proxy, process, port)
        self.judge = judge
        #: Permissions that callers lack; a test may change the set.
        self.denied = judge.denied

    def start(self) -> None:
        """Start the server, and end the jobs that its death cut off."""
        self.process.start()
        self.judge.recover()
        self._proxy.down = False

    def close(self) -> None:
        """Stop everything."""
        self.judge.close()
        super().close()

    def hold_jobs(self, held: bool = True) -> None:
        """From now on, inserted load jobs stay RUNNING and change nothing until they are released."""
        self.judge.loads.hold(held)

    @cached_property
    def _client(self) -> bigquery.Client:
        return bigquery.Client(PROJECT, AnonymousCredentials(), client_options=self._options)

    def client(self) -> bigquery.Client:
        """The real client, without credentials; one for all, closed with the server."""
        return self._client

    def new_dataset(self, project: str = PROJECT) -> str:
        """A dataset of the test's own, in the US."""
        name = f"d_{next(self._names)}"
        self.client().create_dataset(f"{project}.{name}")
        return name


@contextlib.contextmanager
def run_gcs(program: Program, folder: Path, *, keeps_versions: bool = False) -> Iterator[GcsServer]:
    """fake-gcs-server behind its proxy until the end of the block. Its data and log are in ``folder``. With
    ``keeps_versions``, data is in memory, where buckets may have object versioning."""
    (port,) = free_ports(1)
    judge = GcsJudge(Upstream(port))
    proxy = Proxy(judge)
    # Links in answers, such as those of resumable uploads, lead through the proxy.
    public = proxy.endpoint.removeprefix("http://")
    arguments = ("-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-log-level", "warn")
    files = ("-backend", "filesystem", "-filesystem-root", str(folder / "gcs"))
    data = ("-backend", "memory") if keeps_versions else files
    links = ("-public-host", public, "-external-url", proxy.endpoint)
    ready = f"http://127.0.0.1:{port}/storage/v1/b?project={PROJECT}"
    process = ServerProcess(
        (*program.command, *arguments, *data, *links), program.environment, folder / "gcs.log", ready
    )
    with contextlib.closing(GcsServer(proxy, process, port, judge)) as server:
        server.start()
        yield server


@contextlib.contextmanager
def run_bigquery(program: Program, folder: Path, gcs: GcsServer) -> Iterator[BigQueryServer]:
    """local-bigquery behind its proxy until the end of the block, reading files of ``gcs``."""
    port, grpc_port = free_ports(2)
    judge = BigQueryJudge(Upstream(port), Upstream(gcs.port), folder / "judge")
    proxy = Proxy(judge)
    places = ("--host", "127.0.0.1", "--port", str(port), "--grpc-port", str(grpc_port))
    data = ("--project", PROJECT, "--dataset", "unused", "--data-dir", str(folder / "bigquery"))
    ready = f"http://127.0.0.1:{port}/bigquery/v2/projects/{PROJECT}/datasets"
    process = ServerProcess(
        (*program.command, "serve", *places, *data), program.environment, folder / "bigquery.log", ready
    )
    with contextlib.closing(BigQueryServer(proxy, process, port, judge)) as server:
        server.start()
        yield server
