"""The topic catalog: one reviewed folder with every topic and its options.

    catalog/catalog.yaml                                names, rules, environments
    catalog/<company>/<domain>/<topic>/<env>/topic.yaml an entry (or topic.json)
    catalog/…/defaults.yaml, defaults.<env>.yaml        inherited by all entries below, at any level
    catalog/<company>/<domain>/<topic>/schemas/*.avsc   its schemas, for all environments or for one

Pure: files are read by `adapters/catalog_files.py`, schemas checked by `pipelines/catalog/reader.py`.
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
