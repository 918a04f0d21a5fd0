"""Mutants: the protocol with one rule removed, in the smallest scope known to notice, and what it breaks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kbq_assets_tests.model.rules import Rule
from kbq_assets_tests.model.world import Budget, Scope


@dataclass(frozen=True)
class Mutant:
    """A rule to remove, where, and the promise that breaks: the first word of the violation.

    `breaks` is None for a rule that another one makes redundant: the whole scope is explored and found safe.
    `also` are rules removed with it, to show that they cover for one another.
    """

    rule: Rule
    scope: Scope
    breaks: str | None
    also: tuple[Rule, ...] = ()

    @property
    def name(self) -> str:
        """The rules removed, as one word."""
        return "+".join(rule.name for rule in (self.rule, *self.also))

    @property
    def removed(self) -> Scope:
        """The scope with the rules removed."""
        return replace(self.scope, removed=frozenset({self.rule, *self.also}))

    def is_outcome(self, violation: str | None) -> bool:
        """Is this the violation that removing the rule should lead to?"""
        if self.breaks is None or violation is None:
            return self.breaks == violation
        return violation.startswith(f"{self.breaks}")


def _mutant(rule: Rule, breaks: str | None, log: str, **scope: int | bool | str | Budget) -> Mutant:
    return Mutant(rule, Scope(log, **scope), breaks)  # type: ignore[arg-type]


_SWEPT_ACROSS_A_RESET = Scope("a1", janitors=1, reset_gives_up=True, budget=Budget(resets=1, parks=1))

MUTANTS = (
    _mutant(Rule.COMMIT_PRECONDITION, "PROGRESS", "a1 -", window=2, extractors=2),
    _mutant(Rule.ATTEMPT_IN_PATH, "LOSS", "a1 a1", window=2, extractors=2, janitors=1),
    _mutant(Rule.UPLOAD_BEFORE_COMMIT, "LOSS", "a1"),
    _mutant(Rule.SWAP_CHECKS_EPOCH, "LOSS", "a1", extractors=2, budget=Budget(resets=1)),
    _mutant(Rule.PRUNE_NEEDS_ALL_TABLES, "LOSS", "a1 b1", window=2, janitors=1),
    _mutant(Rule.CHUNK_BEFORE_DROP, "LOSS", "a1", budget=Budget(parks=1)),
    _mutant(Rule.CHUNKS_IN_OFFSET_ORDER, "LOSS", "a1 a1", budget=Budget(parks=1)),
    _mutant(Rule.DONE_AFTER_COMMIT, "DONE", "a1", with_done=True),
    _mutant(Rule.SWEEP_SPARES_THE_FUTURE, "LOSS", "a1", janitors=1),
    Mutant(Rule.SWEEP_LISTS_FIRST, _SWEPT_ACROSS_A_RESET, None),
    Mutant(Rule.SWEEP_COMPARES_EPOCHS, _SWEPT_ACROSS_A_RESET, None),
    Mutant(Rule.SWEEP_LISTS_FIRST, _SWEPT_ACROSS_A_RESET, "LOSS", also=(Rule.SWEEP_COMPARES_EPOCHS,)),
    _mutant(Rule.SWEEP_READS_TABLES_LAST, "LOSS", "a1", janitors=1, budget=Budget(parks=1)),
    _mutant(Rule.SWEEP_SPARES_BACKLOG, "LOSS", "a1", janitors=1, budget=Budget(parks=1)),
    _mutant(Rule.SWEEP_SPARES_QUARANTINE, "LOSS", "a1", janitors=1, budget=Budget(rejections=1)),
    _mutant(
        Rule.SWEEP_SPARES_JOBS,
        None,
        "a1",
        janitors=1,
        budget=Budget(resets=1, parks=1),
        reset_gives_up=True,
    ),
    _mutant(Rule.RESET_BUMPS_EPOCH, "LOSS", "a1", janitors=1, budget=Budget(resets=1)),
    _mutant(Rule.RESET_REFUSES_PENDING, "LOSS", "a1", budget=Budget(resets=1)),
    _mutant(
        Rule.GIVEN_UP_IS_IGNORED,
        "PROGRESS",
        "a1",
        janitors=1,
        budget=Budget(resets=1, parks=1),
        reset_gives_up=True,
    ),
    _mutant(Rule.MARKS_HAVE_EPOCH, "LOSS", "a1", janitors=1, budget=Budget(resets=1)),
    _mutant(Rule.MARKS_HAVE_SCHEMA, "LOSS", "a1 a2", window=2, janitors=1),
    _mutant(Rule.BATCH_IS_PREFIX, "LOSS", "a1 a1", batch=1),
    _mutant(Rule.BACKLOG_AFTER_COMMIT, "LOSS", "a1 a1", budget=Budget(parks=1)),
    _mutant(Rule.BACKLOG_MERGED_BY_OFFSET, "LOSS", "a1 a1", batch=1, budget=Budget(parks=1)),
    _mutant(Rule.STATE_PRECONDITION, "DUPLICATE", "a1", loaders=2),
    _mutant(Rule.JOB_ID_FROM_STATE, "DUPLICATE", "a1", loaders=2),
    _mutant(Rule.SEQUENCE_INCREMENTS, "PROGRESS", "a1", budget=Budget(transient=1)),
    _mutant(Rule.SAME_ID_ON_UNKNOWN, "DUPLICATE", "a1", budget=Budget(timeouts=1)),
    _mutant(Rule.ADOPTION_COMPARES_FILES, "LOSS", "a1", budget=Budget(give_ups=1)),
    _mutant(Rule.GIVE_UP_BURNS, "DUPLICATE", "a1", budget=Budget(crashes=1, give_ups=1)),
    _mutant(Rule.RECORD_BEFORE_DELETE, None, "a1", budget=Budget(crashes=1)),
    _mutant(Rule.QUARANTINE_NOT_AFTER_MARK, "LOSS", "a1", budget=Budget(rejections=1)),
    _mutant(Rule.QUARANTINE_NOT_BEFORE_MARK, "COUNTED", "a1", budget=Budget(crashes=1, rejections=1)),
    _mutant(Rule.REST_BEFORE_MARK, "LOSS", "a1 a1", budget=Budget(rejections=1)),
    _mutant(
        Rule.MISSING_STATE_STOPS, "DUPLICATE", "a1", loaders=2, with_registry=True, budget=Budget(losses=1)
    ),
    _mutant(Rule.UNREADABLE_STATE_STOPS, "DUPLICATE", "a1", loaders=2, budget=Budget(unreadable=1)),
    _mutant(
        Rule.UUID_IN_REGISTRY,
        "DUPLICATE",
        "a1",
        loaders=2,
        with_registry=True,
        budget=Budget(losses=1),
    ),
    _mutant(Rule.HIGHEST_DONE_STAYS, "DONE", "a1", with_done=True),
)
