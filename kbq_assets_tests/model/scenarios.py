"""The scopes in which the whole protocol is explored: small ones for every test run, larger ones by hand."""

from __future__ import annotations

from dataclasses import dataclass

from kbq_assets_tests.model.world import Budget, Scope


@dataclass(frozen=True)
class Scenario:
    """A scope and what it is about."""

    name: str
    scope: Scope


FAST = (
    Scenario(
        "1 window; each fault once",
        Scope("a1", janitors=1, budget=Budget(crashes=1, timeouts=1, transient=1, rejections=1)),
    ),
    Scenario(
        "2 windows; rejected files, a failed job, a parked table",
        Scope("a1 a1", janitors=1, budget=Budget(rejections=1, transient=1, parks=1)),
    ),
    Scenario(
        "2 loaders, 2 windows; a table parked and resumed",
        Scope("a1 a1", loaders=2, budget=Budget(parks=1)),
    ),
    Scenario(
        "2 extractors, 2 loaders, 1 window; a crash",
        Scope("a1", extractors=2, loaders=2, janitors=1, budget=Budget(crashes=1)),
    ),
    Scenario(
        "1 window; a reset, a crash",
        Scope("a1", janitors=1, budget=Budget(resets=1, crashes=1)),
    ),
    Scenario(
        "1 window; a reset that gives up, a parked table",
        Scope("a1", janitors=1, reset_gives_up=True, budget=Budget(resets=1, parks=1)),
    ),
    Scenario(
        "1 window; a load job given up, a crash, a lost answer",
        Scope("a1", janitors=1, budget=Budget(give_ups=1, crashes=1, timeouts=1)),
    ),
    Scenario(
        "2 tables, one held parked for ever; a crash",
        Scope("a1 b1", window=2, janitors=1, stay_parked="a", budget=Budget(crashes=1)),
    ),
    Scenario(
        "2 schema ids, windows of 1 or 2; a crash",
        Scope("a1 a2", window=2, janitors=1, budget=Budget(crashes=1)),
    ),
    Scenario(
        "2 loaders register a table; its state is lost; a crash",
        Scope("a1", loaders=2, with_registry=True, budget=Budget(losses=1, crashes=1)),
    ),
    Scenario(
        "done files, a gap; a crash",
        Scope("a1 - a1", window=2, with_done=True, budget=Budget(crashes=1)),
    ),
)

LARGE = (
    Scenario(
        "2 extractors, 2 loaders, 1 window; a crash, a lost answer, a failed job",
        Scope("a1", extractors=2, loaders=2, janitors=1, budget=Budget(crashes=1, timeouts=1, transient=1)),
    ),
    Scenario(
        "2 extractors, 2 loaders, 1 window; every read on its own; a parked table",
        Scope("a1", extractors=2, loaders=2, janitors=1, split_reads=True, budget=Budget(parks=1)),
    ),
    Scenario(
        "2 extractors, 2 loaders, windows of 1 or 2; no fault",
        Scope("a1 a1", window=2, extractors=2, loaders=2, janitors=1),
    ),
    Scenario(
        "2 extractors, 2 schema ids, windows of 1 or 2; a crash",
        Scope("a1 a2", window=2, extractors=2, janitors=1, budget=Budget(crashes=1)),
    ),
    Scenario(
        "2 tables, windows of 1 or 2; a parked table, a crash",
        Scope("a1 b1", window=2, janitors=1, budget=Budget(parks=1, crashes=1)),
    ),
    Scenario(
        "2 loaders, 2 windows; a parked table, a crash",
        Scope("a1 a1", loaders=2, janitors=1, budget=Budget(parks=1, crashes=1)),
    ),
    Scenario(
        "3 windows of 2 schema ids; rejected files, a crash",
        Scope("a1 a2 a1", window=2, janitors=1, budget=Budget(rejections=1, crashes=1)),
    ),
    Scenario(
        "1 window; a reset that gives up, a parked table, a crash",
        Scope("a1", janitors=1, reset_gives_up=True, budget=Budget(resets=1, parks=1, crashes=1)),
    ),
    Scenario(
        "2 windows of 1 or 2; a reset that gives up, a crash",
        Scope("a1 a1", window=2, janitors=1, reset_gives_up=True, budget=Budget(resets=1, crashes=1)),
    ),
    Scenario(
        "2 extractors, 2 loaders, 1 window; a reset that gives up, a parked table",
        Scope(
            "a1",
            extractors=2,
            loaders=2,
            janitors=1,
            reset_gives_up=True,
            budget=Budget(resets=1, parks=1),
        ),
    ),
    Scenario(
        "2 loaders, 1 window; a load job given up, a crash, a lost answer, a failed job",
        Scope("a1", loaders=2, janitors=1, budget=Budget(give_ups=1, crashes=1, timeouts=1, transient=1)),
    ),
)
