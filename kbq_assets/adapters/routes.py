"""Routes of other packages: an entry point of the group `kbq_assets.routes`, named as in `route=python:<name>`.

A route is a function from a `RoutedRecord` to `table`, `dataset.table` or None, decorated with `@inputs(…)`
(core/topics/destinations.py).
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Final

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.topics.destinations import PythonRoute

GROUP: Final = "kbq_assets.routes"


def find_route(name: str) -> PythonRoute:
    """The route of a name. Raises ConfigurationError if no package has it, or it cannot be imported."""
    found = entry_points(group=GROUP)
    point = next((each for each in found if each.name == name), None)
    if point is None:
        installed = ", ".join(sorted(found.names)) or "none"
        raise ConfigurationError(
            f"route=python:{name}: no installed package has it",
            next_step=f"install the package with the entry point, here and on workers; available: {installed}",
        )
    try:
        made = point.load()
    except Exception as error:
        raise ConfigurationError(
            f"route=python:{name} cannot be imported: {type(error).__name__}: {error}",
            next_step=f"see {point.value}",
        ) from error
    if not isinstance(made, PythonRoute):
        raise ConfigurationError(
            f"route=python:{name} does not declare its inputs",
            next_step=f'write @inputs("key", "header.country", "field.customer.tier") above {point.value}',
        )
    return made
