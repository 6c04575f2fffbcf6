"""The platform's pipelines. `provision-workspace` is that of the example `workspace`."""

from redrive import Pipeline
from redrive.examples import workspace
from redrive.examples.growth.missions import begin_mission, configure_interview, publish_plan, write_brief, write_plan
from redrive.examples.growth.projectors import artifact, mission_stage, qscore, service_session

__all__ = ["workspace"]

Pipeline("mission", begin_mission, configure_interview, write_brief, write_plan, publish_plan)
Pipeline("interview-module", configure_interview)
# Started by the event `interview.completed`.
Pipeline("interview-completed", qscore, service_session, mission_stage, artifact)
