"""JSON Schemas of the Kubernetes objects in the Helm chart, strict: a field that Kubernetes does not know is refused.

``python -m kbq_assets_tests.google.kubernetes SWAGGER`` writes `SCHEMAS` again from ``api/openapi-spec/swagger.json``
of a Kubernetes release: https://github.com/kubernetes/kubernetes/tree/v1.30.0/api/openapi-spec (Apache License 2.0).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs

SCHEMAS = Path(__file__).parent / "kubernetes_1.30.json"
_KINDS = {
    "StatefulSet": "io.k8s.api.apps.v1.StatefulSet",
    "Deployment": "io.k8s.api.apps.v1.Deployment",
    "Service": "io.k8s.api.core.v1.Service",
    "ServiceAccount": "io.k8s.api.core.v1.ServiceAccount",
}
_PREFIX = "#/definitions/"
#: Kubernetes' own JSON of these differs from the type in its specification.
_SPELLED_FREELY = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
}


def mistakes(document: dict[str, Any]) -> list[str]:
    """What the Kubernetes API would refuse in an object, by field."""
    stored = json.loads(SCHEMAS.read_text(encoding="utf-8"))
    kind = document.get("kind")
    if kind not in _KINDS:
        return [f"no schema of the kind {kind}"]
    found = stored["definitions"][_KINDS[kind]]
    known = {
        f"{each['group']}/{each['version']}".strip("/") for each in found["x-kubernetes-group-version-kind"]
    }
    wrong = [] if document.get("apiVersion") in known else [f"apiVersion: {document.get('apiVersion')}"]
    validator = jsonschema_rs.Draft4Validator({"$ref": _PREFIX + _KINDS[kind], **stored})
    return wrong + [
        f"{'.'.join(map(str, each.instance_path))}: {each.message}"
        for each in validator.iter_errors(document)
    ]


def schemas(swagger: dict[str, Any]) -> dict[str, Any]:
    """The definitions that the kinds need, without descriptions."""
    wanted, kept = [*_KINDS.values()], dict[str, Any]()
    while wanted:
        name = wanted.pop()
        if name not in kept:
            kept[name] = _SPELLED_FREELY.get(name) or _strict(swagger["definitions"][name])
            wanted.extend(_references(kept[name]))
    return {"definitions": dict(sorted(kept.items()))}


def _strict(definition: Any) -> Any:
    if isinstance(definition, list):
        return [_strict(each) for each in definition]
    if not isinstance(definition, dict):
        return definition
    kept = {key: _strict(value) for key, value in definition.items() if key not in ("description", "default")}
    if isinstance(kept.get("properties"), dict) and kept.get("type") == "object":
        kept["properties"] = {key: _strict(value) for key, value in definition["properties"].items()}
        kept["additionalProperties"] = False
    return kept


def _references(definition: Any) -> Iterator[str]:
    if isinstance(definition, dict):
        if isinstance(reference := definition.get("$ref"), str):
            yield reference.removeprefix(_PREFIX)
        definition = list(definition.values())
    if isinstance(definition, list):
        for each in definition:
            yield from _references(each)


if __name__ == "__main__":
    made = schemas(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    SCHEMAS.write_text(json.dumps(made, separators=(",", ":")) + "\n", encoding="utf-8")
