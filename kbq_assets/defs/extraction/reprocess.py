"""Reading a range of a topic again, as a job: what `kbq reset` does, shown first and done when told so."""

# Dagster reads the annotation of `context`: no postponed annotations here.

import dagster as dg

from kbq_assets.core.errors import KbqError
from kbq_assets.core.timestamps import parse_moment
from kbq_assets.defs.runs import Steps
from kbq_assets.pipelines.operate.commands import Proposal

_CONFIG = {
    "topic": dg.Field(str, description="The topic."),
    "partition": dg.Field(int, default_value=-1, description="This Kafka partition alone; -1: all of them."),
    "from_offset": dg.Field(int, default_value=-1, description="Read again from here; -1: see from_time."),
    "from_time": dg.Field(
        str,
        default_value="",
        description="Read again from the first record of this time or later (ISO 8601, or ms since 1970). Neither this "
        "nor an offset: from the earliest record.",
    ),
    "give_up_pending": dg.Field(
        bool, default_value=False, description="Lose committed files that are not loaded yet."
    ),
    "apply": dg.Field(
        bool, default_value=False, description="Do it. Otherwise the run shows what it would do."
    ),
}


def reprocess_op(steps: Steps) -> dg.OpDefinition:
    """The step: a new epoch begins, in which the next extraction reads the range again."""

    def reprocess(context: dg.OpExecutionContext) -> None:
        try:
            proposal = _proposal(steps, context.op_config)
            context.log.info("\n".join((proposal.title, *proposal.lines)))
            if context.op_config["apply"]:
                proposal.apply()
        except KbqError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        done = "done: the next extraction reads it" if context.op_config["apply"] else "set `apply` to do it"
        context.log.info(done)
        context.add_output_metadata({"proposal": dg.MetadataValue.md(_markdown(proposal, done))})

    return dg.op(name="reprocess", config_schema=_CONFIG, out=dg.Out(dg.Nothing))(reprocess)


def _proposal(steps: Steps, config: dict[str, object]) -> Proposal:
    offset, time = int(str(config["from_offset"])), str(config["from_time"])
    partition = int(str(config["partition"]))
    if offset >= 0 and time:
        raise dg.Failure("from_offset and from_time: one of them", allow_retries=False)
    return steps.operator.reset(
        str(config["topic"]),
        partition=None if partition < 0 else partition,
        at="offset" if offset >= 0 else "timestamp" if time else "earliest",
        timestamp_ms=parse_moment(time) if time else 0,
        offset=max(offset, 0),
        give_up_pending=bool(config["give_up_pending"]),
    )


def _markdown(proposal: Proposal, done: str) -> str:
    return "\n".join((proposal.title, "", *(f"- {line}" for line in proposal.lines), "", done))
