"""Definitions for the orchestrator's tests: jobs that do nothing, wait, or die."""

from __future__ import annotations

import os
import signal
import time

import dagster as dg


@dg.op(pool="kbq_load")
def say(context) -> None:  # type: ignore[no-untyped-def]
    context.log.info("hello")


@dg.op(pool="kbq_load")
def wait(context) -> None:  # type: ignore[no-untyped-def]
    context.log.info("waiting")
    time.sleep(600)


@dg.op(pool="kbq_load")
def fail() -> None:
    raise RuntimeError("on purpose")


@dg.op(pool="kbq_load")
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dg.op(pool="kbq_load")
def die_once(context) -> None:  # type: ignore[no-untyped-def]
    if context.run.parent_run_id is None:
        os.kill(os.getpid(), signal.SIGKILL)
    context.log.info("alive")


def job_of(op: dg.OpDefinition, name: str) -> dg.JobDefinition:
    return dg.GraphDefinition(name=name, node_defs=[op]).to_job(
        executor_def=dg.in_process_executor, tags={"kbq/load": "1"}
    )


defs = dg.Definitions(
    jobs=[
        job_of(say, "says"),
        job_of(wait, "waits"),
        job_of(fail, "fails"),
        job_of(die, "dies"),
        job_of(die_once, "dies_once"),
    ]
)
