"""Opens the ports of notices for one deployment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kbq_assets.extras.notices.model import Notifier
from kbq_assets.extras.notices.observe import Observed, teams_of
from kbq_assets.extras.notices.send import NoticePorts
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.observation.lake_readers import readers_behind
from kbq_assets.pipelines.observation.observer import Observer
from kbq_assets.pipelines.protocol.evolutions import read_evolutions


def notice_ports(deployment: Deployment, observer: Observer, notifiers: Sequence[Notifier]) -> NoticePorts:
    """The ports of notices: state and checks from the observer, teams from the source list."""
    store, sources = deployment.load_store, deployment.sources

    def teams(subjects: Iterable[str]) -> Mapping[str, frozenset[str]]:
        feeds = observer.feeds()
        selected = sources.select(frozenset(subjects).union(*feeds.values()))
        return teams_of({topic: each.ownership.owner for topic, each in selected.items()}, feeds)

    observed = Observed(
        observer.checks,
        observer.tables,
        sources.uncatalogd,
        lambda: read_evolutions(store, (entry.settings for entry in sources.read())),
        teams,
        lambda: readers_behind(store),
    )
    return NoticePorts(store, observed, notifiers)
