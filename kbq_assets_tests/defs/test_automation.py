"""Dagster's daemon does the work on the real broker, store and DuckDB, whatever is killed meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import psutil
import pytest

import kbq_assets.defs
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.defs.instance.orchestrator import DagsterOrchestrator
from kbq_assets.defs.instance.processes import Processes
from kbq_assets.defs.jobs import EXTRACT_TAG, LOAD_TAG
from kbq_assets.local.stack import LocalStack
from kbq_assets_tests.adapters.kafka.brokers import real_broker
from kbq_assets_tests.defs.instance.test_orchestrator import arguments_of, ask, wait_for
from kbq_assets_tests.fakes.hook_server import HookServer, hook_server
from kbq_assets_tests.fixtures.local_stack import REPOSITORY, free_ports
from kbq_assets_tests.integration.world import Producers, World

pytestmark = [pytest.mark.slow, pytest.mark.kafka]

WORKSPACE = f"""
load_from:
  - python_module:
      module_name: kbq_assets_tests.defs.automated
      attribute: defs
      location_name: kbq
      working_directory: {REPOSITORY}
"""
#: How long a dead run may hold up the next one: some 15 s, and a minute more where the daemon must first miss a code
#: server; on a machine that is busy with other tests, several times that. Unnoticed, it is 40 minutes.
BAR_SECONDS = 180


@dataclass
class Automation:
    """A home whose daemon runs, with sensors that look every few seconds."""

    world: World
    topic: TopicPartition
    orchestrator: DagsterOrchestrator
    url: str
    hook: HookServer

    @property
    def folder(self) -> Path:
        return self.world.folder

    def produce(self) -> None:
        order = self.world.producers.register(("x", "long"), name="Order")
        self.world.producers.produce(self.topic, [order.value(x=n) for n in range(50)], "row:shop.orders")

    def catalogue(self, topic: str, name: str) -> None:
        """Add an entry, as a merge would."""
        write_entry(self.folder, topic, name)

    def notices(self, kind: str) -> list[tuple[str, str]]:
        """Subjects and texts of what the webhook received."""
        documents = [json.loads(posted.body) for posted in self.hook.posted]
        items = [item for document in documents for item in document["items"]]
        return [(item["subject"], item["text"]) for item in items if item["kind"] == kind]

    def hold(self, call: str) -> None:
        (self.folder / "held").unlink(missing_ok=True)
        (self.folder / f"hold.{call}").touch()

    def release(self) -> None:
        for hold in self.folder.glob("hold.*"):
            hold.unlink()

    def held_worker(self) -> psutil.Process:
        """The process of the run that is held."""
        wait_for(lambda: (self.folder / "held").is_file() and (self.folder / "held").read_text())
        return psutil.Process(int((self.folder / "held").read_text()))

    def held_run(self, tag: str) -> str:
        """The id of the run that is held, the only one of its kind that has started."""
        [record] = self.runs(tag, dg.DagsterRunStatus.STARTED)
        return record.dagster_run.run_id

    def run(self, run_id: str) -> dg.DagsterRun:
        with dg.DagsterInstance.from_config(str(self.folder / "dagster")) as instance:
            found = instance.get_run_by_id(run_id)
        assert found is not None
        return found

    def runs(self, tag: str, *statuses: dg.DagsterRunStatus) -> list[dg.RunRecord]:
        """Runs with a tag, the oldest first."""
        with dg.DagsterInstance.from_config(str(self.folder / "dagster")) as instance:
            records = instance.get_run_records(dg.RunsFilter(statuses=list(statuses)), ascending=True)
            return [record for record in records if tag in record.dagster_run.tags]

    def held_up(self, since: float, later: list[dg.RunRecord]) -> float:
        """Seconds until one of the runs left the queue. How long its process takes to start is the machine's doing."""
        with dg.DagsterInstance.from_config(str(self.folder / "dagster")) as instance:
            launches = [instance.get_run_stats(r.dagster_run.run_id).launch_time for r in later]
        return min(launch for launch in launches if launch and launch > since) - since

    def processes(self, *words: str) -> list[psutil.Process]:
        """Dagster's processes of the home whose command line has all words."""
        found = Processes(self.folder / "dagster", self.folder / "logs", {}).found()
        return [p for p in found if all(word in " ".join(arguments_of(p)) for word in words)]

    def served(self) -> tuple[object, list[int]]:
        """When the definitions were loaded, and the daemon's process: another one after each reload and restart."""
        query = "{ workspaceOrError { ... on Workspace { locationEntries { updatedTimestamp } } } }"
        return ask(self.url, query)["workspaceOrError"], [p.pid for p in self.processes("dagster._daemon")]

    def settle(self) -> None:
        """Wait until automation has moved everything; then it is all there once."""

        def is_settled() -> bool:
            parts = self.world.parts
            plan = parts.extractor.plan()
            return not plan.units and not parts.loader.poll().names and not self.under_way()

        wait_for(is_settled)
        assert self.world.reconciled().accounted

    def under_way(self) -> list[dg.RunRecord]:
        live = (
            dg.DagsterRunStatus.QUEUED,
            dg.DagsterRunStatus.STARTING,
            dg.DagsterRunStatus.STARTED,
            dg.DagsterRunStatus.CANCELING,
        )
        return [*self.runs(EXTRACT_TAG, *live), *self.runs(LOAD_TAG, *live)]


@pytest.fixture(scope="module")
def automation(local_stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Automation]:
    folder = tmp_path_factory.mktemp("automation")
    configuration = folder / "configuration"
    configuration.mkdir()
    shutil.copy(Path(kbq_assets.defs.__file__).parent / "home" / "dagster.yaml", configuration)
    (configuration / "workspace.yaml").write_text(WORKSPACE)
    home = folder / "home"
    home.mkdir()
    for broker in real_broker(local_stack.bootstrap_servers):
        topic = TopicPartition(broker.create_topic(), 0)
        write_entry(home, topic.topic, "orders")
        with hook_server() as hook:
            looks = {
                "KBQ_SOURCE_TOPICS": str(home / "catalog"),
                "KBQ_EXTRACT_SECONDS": "5",
                "KBQ_LOAD_SECONDS": "5",
                "KBQ_NOTIFY": f"webhook:{hook.url}/hook",
                "KBQ_NOTIFY_SECONDS": "10",
            }
            world = World(home, Producers(broker, local_stack.registry_url), environ=looks)
            environ = {**os.environ, **world.environ}
            with serving(world.folder, environ, configuration) as url:
                definitions = world.parts.definitions
                orchestrator = DagsterOrchestrator(world.folder, environ, definitions, configuration)
                yield Automation(world, topic, orchestrator, url, hook)


def write_entry(home: Path, topic: str, name: str) -> None:
    """An entry of the catalogue in a home: a topic, and the table of the dataset `shop` that it goes to."""
    place = home / "catalog/shop/sales" / name / "prod"
    place.mkdir(parents=True)
    text = f"consumers: [archiver]\nkafka: {{name: {topic}}}\ndestination: {{dataset: shop}}\n"
    # Complete at once: it may be read at any moment.
    (home / "topic.yaml").write_text(text)
    (home / "topic.yaml").rename(place / "topic.yaml")


@contextlib.contextmanager
def serving(home: Path, environ: Mapping[str, str], configuration: Path) -> Iterator[str]:
    """The same as `kbq ui`, in a separate process."""
    code = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from kbq_assets.defs.instance.orchestrator import DagsterOrchestrator\n"
        # What is started in the background of a shell ignores interrupts.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "home, configuration, port = sys.argv[1:]\n"
        "orchestrator = DagsterOrchestrator(Path(home), os.environ, lambda: None, Path(configuration))\n"
        "try: orchestrator.serve(int(port), lambda url: print(url, flush=True))\n"
        "except KeyboardInterrupt: pass\n"
    )
    [port] = free_ports(1)
    command = [sys.executable, "-W", "ignore", "-c", code, str(home), str(configuration), str(port)]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.send_signal(signal.SIGINT)
    assert Processes(home / "dagster", home / "logs", {}).found() == []


def test_new_records_are_moved_without_a_hand(automation: Automation) -> None:
    automation.produce()
    wait_for(lambda: [table.loaded_rows for table in automation.world.parts.observer.tables()] == [50])
    automation.settle()


def test_an_entry_and_one_message_are_a_table_and_a_notice_one_cycle_later(automation: Automation) -> None:
    """No restart, no reload, no code: one extraction, the load that its file asks for, and the next look."""
    served = automation.served()
    before = [len(automation.runs(tag)) for tag in (EXTRACT_TAG, LOAD_TAG)]
    world = automation.world
    topic = TopicPartition(world.broker.create_topic(), 0)
    returned = world.producers.register(("order", "long"), ("why", "string"), name="Return")
    world.producers.produce(topic, [returned.value(order=7, why="too small")], "row:shop.returns")
    automation.catalogue(topic.topic, "returns")
    wait_for(lambda: "shop.returns" in dict(automation.notices("new_table")))
    automation.settle()
    assert world.query('SELECT "order", why, _kafka_offset FROM shop.returns') == [(7, "too small", 0)]
    assert f"schema id {returned.schema_id}" in dict(automation.notices("new_table"))["shop.returns"]
    assert [len(automation.runs(tag)) for tag in (EXTRACT_TAG, LOAD_TAG)] == [count + 1 for count in before]
    assert automation.served() == served


def kill(processes: list[psutil.Process]) -> None:
    assert processes
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def reload(automation: Automation) -> object:
    """Reload the definitions, as the UI's button does."""
    mutation = 'mutation { reloadRepositoryLocation(repositoryLocationName: "kbq") { __typename } }'
    return ask(automation.url, mutation)["reloadRepositoryLocation"]["__typename"]


def assert_one_after_another(records: list[dg.RunRecord]) -> None:
    """No run begins before the one before has ended."""
    spans = sorted((r.start_time or 0.0, r.end_time or 0.0) for r in records if r.start_time)
    assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(spans)), spans


def test_three_loads_at_once_run_one_after_another_and_a_killed_one_holds_nobody_up(
    automation: Automation,
) -> None:
    before = len(automation.runs(LOAD_TAG))
    automation.hold("warehouse.insert_job")
    automation.produce()
    worker, held = automation.held_worker(), automation.held_run(LOAD_TAG)
    launched = [automation.orchestrator.submit("load_job") for _ in range(3)]
    wait_for(lambda: len(automation.runs(LOAD_TAG)) >= before + 4)
    assert reload(automation) == "WorkspaceLocationEntry"
    assert automation.held_run(LOAD_TAG) == held
    killed_at = time.time()
    worker.kill()
    automation.release()
    wait_for(lambda: all(automation.orchestrator.outcome(run).succeeded for run in launched))
    automation.settle()
    records = automation.runs(LOAD_TAG)[before:]
    assert_one_after_another(records)
    assert automation.run(held).is_failure
    assert automation.held_up(killed_at, records) < BAR_SECONDS


def test_a_killed_extraction_is_tried_again(automation: Automation) -> None:
    before = len(automation.runs(EXTRACT_TAG))
    automation.hold("source.read")
    automation.produce()
    worker, held = automation.held_worker(), automation.held_run(EXTRACT_TAG)
    killed_at = time.time()
    worker.kill()
    automation.release()
    # Whoever is first, the retry or the sensor's next run: it goes on there.
    wait_for(lambda: held in [record.dagster_run.parent_run_id for record in automation.runs(EXTRACT_TAG)])
    automation.settle()
    records = automation.runs(EXTRACT_TAG)[before:]
    assert automation.run(held).is_failure
    assert_one_after_another(records)
    assert automation.held_up(killed_at, records) < BAR_SECONDS


def test_runs_under_way_and_queued_outlive_the_daemon_and_its_code_server(automation: Automation) -> None:
    before = len(automation.runs(LOAD_TAG))
    automation.hold("warehouse.insert_job")
    automation.produce()
    automation.held_worker()
    held, queued = automation.held_run(LOAD_TAG), automation.orchestrator.submit("load_job")
    killed = automation.processes("dagster._daemon") + automation.processes("dagster", "api", "grpc")
    kill(killed)
    wait_for(lambda: set(automation.processes("dagster._daemon")) - set(killed))
    automation.release()
    wait_for(lambda: automation.orchestrator.outcome(queued).succeeded)
    automation.settle()
    assert automation.run(held).is_success
    assert_one_after_another(automation.runs(LOAD_TAG)[before:])


def test_a_worker_that_dies_after_its_code_server_holds_nobody_up(automation: Automation) -> None:
    before = len(automation.runs(LOAD_TAG))
    automation.hold("warehouse.insert_job")
    automation.produce()
    worker = automation.held_worker()
    queued = automation.orchestrator.submit("load_job")
    kill(automation.processes("dagster", "api", "grpc"))
    assert worker.is_running()
    killed_at = time.time()
    worker.kill()
    automation.release()
    wait_for(lambda: automation.orchestrator.outcome(queued).succeeded)
    automation.settle()
    records = automation.runs(LOAD_TAG)[before:]
    assert_one_after_another(records)
    assert automation.held_up(killed_at, records) < 2 * BAR_SECONDS
