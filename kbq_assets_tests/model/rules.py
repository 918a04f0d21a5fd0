"""The rules of PROTOCOL.md that can be removed one at a time; a removed rule must break a promise."""

from __future__ import annotations

from enum import StrEnum, unique


@unique
class Rule(StrEnum):
    """A rule, described by what is true while it applies. Removing it makes a mutant."""

    # The commit and its windows
    COMMIT_PRECONDITION = "E4: a commit is swapped on the generation that was read"
    ATTEMPT_IN_PATH = "E3: every attempt writes under its own folder"
    UPLOAD_BEFORE_COMMIT = "E3: a window's files exist before it is committed"
    SWAP_CHECKS_EPOCH = "E4: a lost swap is retried only in the same epoch"
    PRUNE_NEEDS_ALL_TABLES = "E7: a window is pruned when all of its files are covered"
    CHUNK_BEFORE_DROP = "E7: a file leaves the commit after its backlog chunk exists"
    CHUNKS_IN_OFFSET_ORDER = "E7: backlog chunks are created oldest first, or old files seem loaded"
    DONE_AFTER_COMMIT = "E5: a done file is written from the commit"
    # The janitor
    SWEEP_SPARES_THE_FUTURE = "E6: a file at or beyond `next` is not deleted"
    SWEEP_COMPARES_EPOCHS = "E6: `next` counts for files of the commit's own epoch alone"
    SWEEP_LISTS_FIRST = "E6: the janitor lists before it reads the commit"
    SWEEP_READS_TABLES_LAST = "E6: the janitor reads table states and backlogs after the commit"
    SWEEP_SPARES_BACKLOG = "E6: a file listed in a backlog is not deleted"
    SWEEP_SPARES_QUARANTINE = "E6: a quarantined file is not deleted"
    SWEEP_SPARES_JOBS = "E6: a file of a load job in flight is not deleted"
    # Reset
    RESET_BUMPS_EPOCH = "E9: reset bumps the epoch"
    RESET_REFUSES_PENDING = "E9: reset refuses pending windows unless they are given up"
    GIVEN_UP_IS_IGNORED = "E9: files that a reset gave up are no candidates any more"
    MARKS_HAVE_EPOCH = "E9: a mark carries its epoch"
    # Batches
    MARKS_HAVE_SCHEMA = "L1: a mark carries its schema id"
    BATCH_IS_PREFIX = "L1: a batch is a prefix of the pending windows"
    BACKLOG_AFTER_COMMIT = "L1: the loader reads the backlog after the commit"
    BACKLOG_MERGED_BY_OFFSET = "L1: backlog files are merged with committed ones by offset"
    # Load jobs in flight
    STATE_PRECONDITION = "L2: a table's state is swapped on the generation that was read"
    JOB_ID_FROM_STATE = "L2: the job id is derived from the state"
    SEQUENCE_INCREMENTS = "L2, L5: a retry after a failure has a new sequence number"
    SAME_ID_ON_UNKNOWN = "L3: an unknown outcome is followed by the same id"
    ADOPTION_COMPARES_FILES = "L3: a job found by id is adopted only for the same files"
    GIVE_UP_BURNS = "L3: an id is burned before its load job is given up"
    RECORD_BEFORE_DELETE = "L4: files are deleted after the load is recorded"
    # Failures
    QUARANTINE_NOT_AFTER_MARK = "L5: a file is quarantined no later than the mark passes it"
    QUARANTINE_NOT_BEFORE_MARK = "L5: a file is quarantined no sooner than the mark passes it"
    REST_BEFORE_MARK = "L5: the mark passes a bad file only when the rest of its batch is loaded"
    MISSING_STATE_STOPS = "L6: a missing state of an active table stops the table"
    UNREADABLE_STATE_STOPS = "L6: an unreadable state stops the table"
    UUID_IN_REGISTRY = "L6: a table's uuid is chosen when it is registered"
    HIGHEST_DONE_STAYS = "L7: the highest done file is never removed"
