"""The objects that do KBQ's work, as commands and Dagster receive them."""

from __future__ import annotations

from typing import Protocol

from kbq_assets.pipelines.compaction.compactor import Compactor
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.extraction.extractor import Extractor
from kbq_assets.pipelines.loading.loader import Loader
from kbq_assets.pipelines.observation.observer import Observer
from kbq_assets.pipelines.operate.operator import Operator


class Spine(Protocol):
    """KBQ without its extras. `definitions.py` builds it. Each part opens when it is first used."""

    @property
    def deployment(self) -> Deployment:
        """Settings, topics and ports."""

    @property
    def extractor(self) -> Extractor:
        """Reads Kafka into staged files."""

    @property
    def loader(self) -> Loader:
        """Loads staged files into tables."""

    @property
    def compactor(self) -> Compactor:
        """Rewrites a lake's many small files into fewer large ones."""

    @property
    def observer(self) -> Observer:
        """Reports status, checks and completeness."""

    @property
    def operator(self) -> Operator:
        """Runs an operator's repairs: proposals, bad records and the clean-up."""

    def for_warehouse(self, name: str) -> Spine:
        """The same parts for another warehouse."""
