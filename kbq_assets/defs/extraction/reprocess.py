"""A job that reads a range of a topic again, like `kbq reset`. It shows the effect, and applies it on request."""

# No postponed annotations here: Dagster reads the annotations of the op.

import dagster as dg
from pydantic import Field

from kbq_assets.core.errors import KbqError
from kbq_assets.core.timestamps import parse_moment
from kbq_assets.pipelines.operate.commands import EARLIEST, Proposal, StartAt
from kbq_assets.pipelines.operate.operator import Operator


class Reprocessing(dg.Config):
    """The range to read again."""

    topic: str = Field(description="The topic.")
    partition: int = Field(-1, description="Only this Kafka partition; -1: all partitions.")
    from_offset: int = Field(-1, description="Read again from this offset; -1: see from_time.")
    from_time: str = Field(
        "",
        description="Read again from the first record at or after this time (ISO 8601, or ms since 1970). Without an "
        "offset or a time: from the earliest record.",
    )
    give_up_pending: bool = Field(False, description="Give up committed files that are not loaded yet.")
    apply: bool = Field(False, description="Apply the change. Otherwise the run only shows what it would do.")


def reprocess_op(operator: Operator) -> dg.OpDefinition:
    """The step. It begins a new epoch, in which the next extraction reads the range again."""

    @dg.op(out=dg.Out(dg.Nothing))
    def reprocess(context: dg.OpExecutionContext, config: Reprocessing) -> None:
        try:
            proposal = _proposal(operator, config)
            context.log.info("\n".join((proposal.title, *proposal.lines)))
            if config.apply:
                proposal.apply()
        except KbqError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        done = "done: the next extraction reads the range" if config.apply else "set `apply` to do it"
        context.log.info(done)
        context.add_output_metadata({"proposal": dg.MetadataValue.md(_markdown(proposal, done))})

    return reprocess


def _proposal(operator: Operator, config: Reprocessing) -> Proposal:
    offset, time = config.from_offset, config.from_time
    if offset >= 0 and time:
        raise dg.Failure("set only one of from_offset and from_time", allow_retries=False)
    start = StartAt("timestamp", parse_moment(time)) if time else EARLIEST
    if offset >= 0:
        start = StartAt("offset", offset)
    partition = None if config.partition < 0 else config.partition
    return operator.reset(config.topic, partition, start, give_up_pending=config.give_up_pending)


def _markdown(proposal: Proposal, done: str) -> str:
    return "\n".join((proposal.title, "", *(f"- {line}" for line in proposal.lines), "", done))
