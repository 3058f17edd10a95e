"""The chief of one run: its state, and the two objects through which others reach it."""

from __future__ import annotations

from hybridsync.chief.run_control import RunControl
from hybridsync.chief.run_state import RunState
from hybridsync.chief.service import ChiefService


class Chief:
    """Puts a service for the roles and a control for the controller before one state.

    Args:
      state: the run's state.

    Attributes:
      service: takes the calls of workers, servers and supervisors.
      control: the controller's view of the run.
    """

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.service, self.control = ChiefService(state), RunControl(state)
