"""A source and a warehouse in memory, and runners over them."""

from __future__ import annotations

import itertools
from typing import Any

from kbq_assets.core.config.filebatches import FileBatchSettings
from kbq_assets.pipelines.filebatches.ports import FilePorts, steering_names
from kbq_assets.pipelines.filebatches.runner import FileBatches, FilesReport
from kbq_assets.pipelines.filebatches.source_objects import FileSource
from kbq_assets_tests.fakes.clock import FakeClock
from kbq_assets_tests.fakes.file_loads import FakeFileWarehouse
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore


class FilesWorld:
    """One source, one state store and one warehouse. ``settings`` are those of `KBQ_FILES_…`."""

    def __init__(self, **settings: Any) -> None:
        self.source, self.store = FaultyMemoryStore(), FaultyMemoryStore()
        self.warehouse = FakeFileWarehouse(self.source)
        self.clock = FakeClock()
        self.settings = FileBatchSettings(location="source", **settings)
        self._uuids = (f"u{number}" for number in itertools.count())

    def batches(self, process: str = "") -> FileBatches:
        """A runner, as one process sees the world; without a name no call of it fails."""
        own = self.settings
        source = self.source.view(process) if process else self.source
        warehouse = self.warehouse.view(process) if process else self.warehouse
        return FileBatches(
            FilePorts(
                own,
                FileSource(source, own.success, steering_names(own)),
                self.store.view(process) if process else self.store,
                warehouse,
                warehouse,
                self.clock,
                wait_seconds=60,
                poll_seconds=1,
                new_uuid=lambda: next(self._uuids),
            )
        )

    def put(self, path: str, data: str = "x") -> None:
        """Write, or overwrite, an object of the source."""
        self.source.objects.pop(path, None)
        self.source.create(path, data.encode())

    def batch(self, path: str, *names: str) -> None:
        """Upload a batch, whose files hold its path and their name."""
        for name in names or ("data.csv",):
            self.put(f"{path}/{name}", f"{path}/{name}")
        self.put(f"{path}/_SUCCESS", "")

    def run(self) -> FilesReport:
        """One run without faults."""
        return self.batches().run()

    def waiting(self) -> dict[str, str]:
        """The state of each batch that is not applied."""
        report = self.batches().status()
        return {each.path: str(each.state) for table in report.tables for each in table.batches}

    @property
    def loaded(self) -> list[str]:
        """The batches that became visible, in their order, one entry per job."""
        return [visible.batch for visible in self.warehouse.visible]
