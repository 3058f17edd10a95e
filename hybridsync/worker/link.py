"""A worker's way to the parameter server."""

from __future__ import annotations

from typing import Any, Protocol

from hybridsync.interfaces.messages import Push, PushReply
from hybridsync.training.compiled_programs import Parameters


class ServerLink(Protocol):
    """A worker's way to the parameter server; trees in and out."""

    def pull(self, push: Push) -> tuple[PushReply, Parameters]:
        """Return the current sequence and parameters.

        Raises:
          StalePhase, StaleIncarnation: this worker is out of date.
        """
        ...

    def prepare(self, contribution: Any) -> None:
        """Prepare the push of a contribution without reading its numbers; the push may come to nothing.

        Raises:
          SchemaMismatch: the servers would not take it.
        """
        ...

    def push_pull(self, push: Push, contribution: Any) -> tuple[PushReply, Parameters]:
        """Push a contribution; returns at its release, with the parameters then; those of its base are not sent again.

        Raises:
          StalePhase, StaleIncarnation: this worker is out of date.
          StillHeld: the push is not released yet; push it again.
        """
        ...

    def push(self, push: Push, contribution: Any) -> PushReply:
        """Push a contribution, with `push.push_only`; returns at its release, and brings no parameters.

        Raises:
          StalePhase, StaleIncarnation: this worker is out of date.
          StillHeld: the push is not released yet; push it again.
        """
        ...

    def idle(self, push: Push) -> None:
        """Tell the primary that this worker has nothing to compute.

        Raises:
          StalePhase, StaleIncarnation: this worker is out of date.
        """
        ...

    def ready(self, push: Push) -> None:
        """Say that a push could be made; returns when the primary grants it.

        A push without units reports that the parameters of its base are here, and returns at once.

        Raises:
          StalePhase, StaleIncarnation: this worker is out of date.
          StillHeld: it is not granted yet; repeat the call.
        """
        ...

    def download_opt_state(self, push: Push) -> Any:
        """Return the optimizer state that the phase began with, for a worker that makes local updates.

        Raises:
          StalePhase, StaleIncarnation: this worker is out of date.
        """
        ...

    def upload_opt_state(self, push: Push, opt_state: Any) -> None:
        """Leave behind the worker's own optimizer state, as it was after its push with the unit `push.units`.

        It may be called after `close`, too.

        Raises:
          StalePhase: the server is in another phase.
          RoleLost, WaitTimeout: a server is not there.
        """
        ...

    def close(self) -> None:
        """End the calls under way, with RoleLost, and refuse later ones."""
        ...
