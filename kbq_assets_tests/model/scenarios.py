"""The scopes in which the whole protocol is explored: small ones for every test run, larger ones by hand."""

from __future__ import annotations

from dataclasses import dataclass

from kbq_assets_tests.model.world import Budget, Scope


@dataclass(frozen=True)
class Scenario:
    """A named scope; `is_large` ones take minutes and run by `make model` alone."""

    name: str
    scope: Scope
    is_large: bool = False


FAST = (Scenario("one window, every fault once", Scope("a1", janitors=1, budget=Budget(1, 1, 1, 1))),)
