"""An executable model of the staging and loading protocol, explored exhaustively, and its mutants.

`python -m kbq_assets_tests.model` prints a table; `docs/protocol-model.md` says what it shows.
"""
