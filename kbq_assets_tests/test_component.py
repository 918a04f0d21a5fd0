"""The component: what `dg` finds, what a short defs.yaml brings into a project, and that it moves records."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import dagster as dg
import pytest
from dagster.components.core.package_entry import discover_entry_point_package_objects
from dagster.components.testing import create_defs_folder_sandbox

import kbq_assets
from kbq_assets.definitions import Parts
from kbq_assets.defs.extraction.engine import ENGINE
from kbq_assets_tests.defs.world import TOPIC, PlatformWorld
from kbq_assets_tests.fixtures.local_stack import REPOSITORY
from kbq_assets_tests.fixtures.variables import Variables

pytestmark = [
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
    pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated"),  # Dagster's own call
]


class FakeTopics(kbq_assets.KafkaTopics):  # type: ignore[misc]  # found by name, when it is asked for
    """The component with the fakes and a custom specification."""

    world: ClassVar[PlatformWorld]
    environ: ClassVar[Mapping[str, str]]

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        return spec.merge_attributes(tags={"mine": "yes"})

    def open_parts(self, environ: Mapping[str, str]) -> Parts:
        FakeTopics.environ = environ
        return self.world.reopened(**{k: v for k, v in environ.items() if k.startswith("KBQ_")}).parts

    def open_resources(self, opened: Parts) -> Mapping[str, Any]:
        return {ENGINE: dg.ResourceDefinition.hardcoded_resource(self.world.engine)}


ATTRIBUTES: dict[str, Any] = {
    "source_topics": "topics.txt",
    "settings": {
        "KBQ_DATASET": "from_yaml",
        "KBQ_LOAD_SECONDS": "55",
        "KBQ_CLEAN_MINUTES": 7,
        "KBQ_DONE_FILES": False,
        "KBQ_NOTIFY_SECONDS": "{{ 9 * 9 }}",
        "KBQ_KAFKA_CLIENT_ID": "1,2",
    },
    "key_prefix": ["streams"],
    "owners": ["team:streams"],
}


@pytest.fixture
def loaded(tmp_path: Path, variables: Variables) -> Iterator[tuple[PlatformWorld, dg.Definitions]]:
    """A project with the component, loaded as `dg` does."""
    variables["KBQ_DATASET"] = "from_the_environment"
    variables["KBQ_EXTRACT_SECONDS"] = "77"
    FakeTopics.world = PlatformWorld(tmp_path)
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(
            component_cls=FakeTopics,
            defs_yaml_contents={
                "type": f"{FakeTopics.__module__}.{FakeTopics.__name__}",
                "attributes": ATTRIBUTES,
            },
        )
        (path / "topics.txt").write_text(f"{TOPIC} table=flights\n")
        with sandbox.load_component_and_build_defs(defs_path=path) as (_, definitions):
            yield FakeTopics.world, definitions


def test_a_short_defs_yaml_brings_assets_checks_and_sensors_into_a_project(
    loaded: tuple[PlatformWorld, dg.Definitions],
) -> None:
    _, definitions = loaded
    mine = dg.Definitions(
        assets=[dg.AssetSpec("report", deps=[dg.AssetKey(["streams", "from_yaml", "flights"])])],
        resources={"gcs": dg.ResourceDefinition.hardcoded_resource(1)},
        executor=dg.multiprocess_executor,
    )
    project = dg.Definitions.merge(mine, definitions)
    dg.Definitions.validate_loadable(project)
    graph = project.resolve_asset_graph()
    staged = dg.AssetKey(["streams", "staged", TOPIC])
    table = dg.AssetKey(["streams", "from_yaml", "flights"])
    assert graph.get(table).parent_keys == {staged}
    assert all(key.path[0] == "streams" for key in graph.get_all_asset_keys() if key != dg.AssetKey("report"))
    assert (graph.get(staged).tags["mine"], list(graph.get(staged).owners)) == ("yes", ["team:streams"])
    assert dg.AssetCheckKey(staged, "no_partition_is_stopped") in graph.asset_check_keys
    sensor = definitions.resolve_sensor_def("extraction_sensor")
    assert sensor.minimum_interval_seconds == 77, "the environment, where defs.yaml says nothing"


def test_settings_are_texts_as_in_the_environment_although_yaml_and_templates_have_other_types(
    loaded: tuple[PlatformWorld, dg.Definitions],
) -> None:
    """`off` is False in YAML, and Dagster's templates turn the text "55" into a number."""
    stated = {name: FakeTopics.environ[name] for name in ATTRIBUTES["settings"]}
    assert stated == {
        "KBQ_DATASET": "from_yaml",
        "KBQ_LOAD_SECONDS": "55",
        "KBQ_CLEAN_MINUTES": "7",
        "KBQ_DONE_FILES": "off",
        "KBQ_NOTIFY_SECONDS": "81",
        "KBQ_KAFKA_CLIENT_ID": "1,2",
    }
    _, definitions = loaded
    assert definitions.resolve_schedule_def("clean_schedule").cron_schedule == "*/7 * * * *"


def test_no_job_of_a_component_deletes_the_project_s_runs(
    loaded: tuple[PlatformWorld, dg.Definitions],
) -> None:
    _, definitions = loaded
    names = {job.name for job in definitions.resolve_all_job_defs()}
    assert {"extract_job", "load_job"} <= names
    assert "history_job" not in names


def test_a_component_s_assets_are_materialised(loaded: tuple[PlatformWorld, dg.Definitions]) -> None:
    world, definitions = loaded
    world.produce(3)
    with dg.DagsterInstance.ephemeral() as instance:
        result = definitions.resolve_job_def("extract_job").execute_in_process(instance=instance)
        assert result.success
        assert {e.asset_key for e in result.get_asset_materialization_events()} == {
            dg.AssetKey(["streams", "staged", TOPIC])
        }
        table = dg.AssetKey(["streams", "from_yaml", "flights"])
        assets = [a for a in definitions.assets or () if isinstance(a, dg.AssetsDefinition | dg.AssetSpec)]
        resources = dict(definitions.resources or {})
        assert dg.materialize(assets, selection=[table], instance=instance, resources=resources).success
        event = instance.get_latest_materialization_event(table)
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["rows"].value == 3


def test_dg_finds_the_component_by_the_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["entry-points"]
    group, modules = next(iter(declared.items()))
    installed = tmp_path / "kbq_component_test-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: kbq-component-test\nVersion: 0\n")
    lines = [f"{name} = {module}" for name, module in modules.items()]
    (installed / "entry_points.txt").write_text("\n".join((f"[{group}]", *lines)))
    monkeypatch.syspath_prepend(str(tmp_path))
    found = {key.to_typename(): value for key, value in discover_entry_point_package_objects().items()}
    assert found["kbq_assets.KafkaTopics"] is kbq_assets.KafkaTopics
