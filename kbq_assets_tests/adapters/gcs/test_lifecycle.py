"""A bucket's lifecycle rules are read and changed, and other people's rules are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from kbq_assets.adapters.gcs.lifecycle import GcsLifecycles
from kbq_assets.core.catalog.lifecycle import SetTransitions, Transition
from kbq_assets.core.errors import PreconditionFailed, Unavailable
from kbq_assets_tests.adapters.gcs.cloud import NO_PAUSES, anonymous_client
from kbq_assets_tests.fakes.serving import QuietHandler, serving

OTHER: dict[str, Any] = {"action": {"type": "Delete"}, "condition": {"age": 9, "matchesPrefix": ["tmp/"]}}
COPIES = Transition("b", "backup/", ".avro", "NEARLINE", 30)


class Api(ThreadingHTTPServer):
    """A bucket's metadata, as Cloud Storage stores it. With ``meanwhile``, each read is outdated when it arrives."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.metadata: dict[str, Any] = {"name": "b", "metageneration": "1", "lifecycle": {"rule": [OTHER]}}
        self.meanwhile = False


class _Handler(QuietHandler):
    server: Api

    def do_GET(self) -> None:
        read = self.server.metadata
        if self.server.meanwhile:
            self._changed({})
        self.respond(200, read)

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        [expected] = parse_qs(urlsplit(self.path).query)["ifMetagenerationMatch"]
        if expected != self.server.metadata["metageneration"]:
            self.respond(412, {"error": {"message": "conditionNotMet"}})
        else:
            self._changed(body)
            self.respond(200, self.server.metadata)

    def _changed(self, changes: dict[str, Any]) -> None:
        now = self.server.metadata
        self.server.metadata = {**now, **changes, "metageneration": str(int(now["metageneration"]) + 1)}


@pytest.fixture
def api() -> Iterator[Api]:
    server = Api()
    with serving(server):
        yield server


@pytest.fixture
def lifecycles(api: Api) -> GcsLifecycles:
    return GcsLifecycles(anonymous_client(f"http://127.0.0.1:{api.server_port}"), NO_PAUSES)


def test_transitions_are_added_and_replaced_beside_other_rules(api: Api, lifecycles: GcsLifecycles) -> None:
    assert lifecycles.transitions("b") == ()
    lifecycles.change(SetTransitions((COPIES,)))
    assert lifecycles.transitions("b") == (COPIES,)
    later = Transition("b", "backup/", ".avro", "NEARLINE", 60)
    lifecycles.change(SetTransitions((later,), (COPIES,)))
    lifecycles.change(SetTransitions((later,)))  # again: the same
    assert lifecycles.transitions("b") == (later,)
    assert api.metadata["lifecycle"]["rule"] == [
        OTHER,
        {
            "action": {"type": "SetStorageClass", "storageClass": "NEARLINE"},
            "condition": {"age": 60, "matchesPrefix": ["backup/"], "matchesSuffix": [".avro"]},
        },
    ]


def test_a_bucket_that_changes_meanwhile_keeps_its_rules(api: Api, lifecycles: GcsLifecycles) -> None:
    api.meanwhile = True
    with pytest.raises(PreconditionFailed):
        lifecycles.change(SetTransitions((COPIES,)))
    assert api.metadata["lifecycle"]["rule"] == [OTHER]


ODD: list[dict[str, Any]] = [
    {"metageneration": 1},
    {"metageneration": None},
    {"lifecycle": []},
    {"lifecycle": {"rule": "none"}},
    {"lifecycle": {"rule": ["Delete"]}},
    {"lifecycle": {"rule": [{"action": "Delete"}]}},
    {"lifecycle": {"rule": [{"action": {}, "condition": {"matchesPrefix": "kbq/"}}]}},
    {
        "lifecycle": {
            "rule": [
                {
                    "action": {"type": "SetStorageClass"},
                    "condition": {"age": [], "matchesPrefix": ["a"], "matchesSuffix": ["b"]},
                }
            ]
        }
    },
]


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_metadata_of_another_shape_is_no_answer_and_nothing_is_changed(
    api: Api, lifecycles: GcsLifecycles, odd: dict[str, Any]
) -> None:
    before = api.metadata = {**api.metadata, **odd}
    with pytest.raises(Unavailable, match="not Cloud Storage's"):
        lifecycles.transitions("b")
    with pytest.raises(Unavailable, match="not Cloud Storage's"):
        lifecycles.change(SetTransitions((COPIES,)))
    assert api.metadata == before
