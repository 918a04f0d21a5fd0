"""`kbq warehouse remove`: removes a warehouse, so nothing waits for it any more (PROTOCOL W6)."""

from __future__ import annotations

from kbq_assets.core.errors import NotFound, Refused
from kbq_assets.core.loading.file_warehouses import ACTIVE, REMOVED
from kbq_assets.core.loading.table_registry import TableRegistry
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.topic_registry import TopicRegistry
from kbq_assets.core.replay.model import Phase, Replay, replay_path
from kbq_assets.pipelines.operate.commands import Proposal
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.warehouse_store import WarehouseStore
from kbq_assets.pipelines.replay.leftovers import delete_objects, has_objects
from kbq_assets.pipelines.replay.start import read_replays
from kbq_assets.ports.object_store import ObjectStore


def propose_removal(store: ObjectStore, load_store: ObjectStore, name: str) -> Proposal:
    """Remove a warehouse other than the first."""
    known = state.table_registry(WarehouseStore.of(store)).warehouses
    replays = _open_replays(store, name)
    if known.get(name) == REMOVED and not replays:
        raise Refused(f"warehouse {name} was already removed", next_step="remove it from KBQ_WAREHOUSE")
    if name not in known:
        active = ", ".join(sorted(other for other, status in known.items() if status == ACTIVE))
        raise NotFound(
            f"no warehouse other than the first is called {name}",
            next_step=f"name one of these: {active}"
            if active
            else "there is only the first, which must stay",
        )
    waiting = _waiting(store, name)
    rows = sum(file.rows for file in waiting)
    for_it_alone = [file for file in waiting if set(file.wanted_by) == {name}]
    lines = (
        f"gives up {counted(rows, 'row')} of {counted(len(waiting), 'staged file')} not loaded into it",
        f"rows among them for this warehouse only: {sum(file.rows for file in for_it_alone)}",
        *(f"ends replay {each.number} of {each.topic}: its shadow tables stay" for each in replays),
        "its tables stay; its state stays in the staging area, unread; its name is not used again",
        "afterwards, remove it from KBQ_WAREHOUSE and from the topics' warehouses",
    )

    def apply() -> None:
        state.set_warehouses(WarehouseStore.of(load_store), TableRegistry, {name: REMOVED})
        state.set_warehouses(WarehouseStore.of(store), TopicRegistry, {name: REMOVED})
        # End replays that began meanwhile too. From now on, none can begin.
        for each in _open_replays(store, name):
            _end(store, each)

    return Proposal(f"remove warehouse {name}", lines, apply)


def _open_replays(store: ObjectStore, name: str) -> list[Replay]:
    """Replays of a warehouse that have not ended, or whose objects were not all deleted."""
    found = (each for each in read_replays(store) if each.warehouse == name)
    return [each for each in found if not each.is_ended or has_objects(store, each)]


def _end(store: ObjectStore, replay: Replay) -> None:
    """End a replay whose tables can no longer be reached. Delete its staging area, or an erasure would wait for it."""

    def ended(now: Replay) -> Replay:
        if now.is_ended:
            return now
        return now.at(Phase.ACCEPTED if now.phase == Phase.PROMOTED else Phase.DROPPED)

    state.change(store, Replay, replay_path(replay.number), ended)
    delete_objects(store, replay, f"kbq warehouse remove {replay.warehouse}")


def _waiting(store: ObjectStore, name: str) -> list[StagedFile]:
    states = state.warehouse_states(store)
    commits = state.read_commits(store)
    chunks = state.read_backlogs(WarehouseStore.of(store, name))
    files = [file for commit in commits for file in commit.value.files if name in file.wanted_by]
    files += [file for chunk in chunks for file in chunk.value.files]
    return [file for file in {f.path: f for f in files}.values() if not states.has(name, file)]
