"""The topic catalog: a folder, under review, with all topics and their options.

    catalog/catalog.yaml                                names, rules, environments
    catalog/<company>/<domain>/<topic>/<env>/topic.yaml an entry (or topic.json)
    catalog/…/defaults.yaml, defaults.<env>.yaml        inherited by all entries below it, at any level
    catalog/<company>/<domain>/<topic>/schemas/*.avsc   its schemas, for all environments or for one

Pure functions: `adapters/catalog_files.py` reads files, `pipelines/catalog/reader.py` checks schemas.
"""

from kbq_assets.core.catalog.entries import ARCHIVER, Catalog, CatalogEntry, EntryPlace, build_catalog
from kbq_assets.core.catalog.nodes import CatalogFiles, CatalogProblem, DocumentNode

__all__ = [
    "ARCHIVER",
    "Catalog",
    "CatalogEntry",
    "CatalogFiles",
    "CatalogProblem",
    "DocumentNode",
    "EntryPlace",
    "build_catalog",
]
