"""A role that measures states, over gRPC: `EvaluatorServicer` measures, `EvaluatorClient` asks."""

from __future__ import annotations

from hybridsync.core.deadlines import transfer_secs
from hybridsync.interfaces.commands import Evaluation
from hybridsync.interfaces.messages import EvaluationRequest
from hybridsync.interfaces.ports import Evaluate
from hybridsync.security.identity import WORKER
from hybridsync.security.keyring import NO_KEYS, Keyring
from hybridsync.transport.grpc import hybridsync_pb2 as pb
from hybridsync.transport.grpc.channels import Channel, Servicer, call, stub
from hybridsync.transport.grpc.codec import decode, encode
from hybridsync.transport.grpc.snapshot_source import UNREACHABLE_SECS

EVALUATION_SECS = 600.0
"""How long the chief waits for a worker's figures before it measures the state itself; the end of a run waits no longer
either (`COMMIT_DEADLINE_SECS`). Meanwhile later evaluations wait: each would hold another state in memory."""


class EvaluatorServicer(Servicer):
    """Serves a worker to the chief.

    Args:
      evaluate: is called by several threads at a time.
    """

    def __init__(self, evaluate: Evaluate) -> None:

        def answer(request: pb.EvaluationRequest) -> pb.Evaluation:
            return encode(evaluate(decode(EvaluationRequest, request)))

        super().__init__("Evaluator", unary={"Evaluate": answer}, streams={})


class EvaluatorClient:
    """A worker in another process, which measures states; a connection for each call.

    Args:
      address: `host:port` of the worker.
      state_bytes: size of the whole state in bytes, which it fetches first.
      keys: keys of this process.
    """

    def __init__(self, address: str, state_bytes: int, keys: Keyring = NO_KEYS) -> None:
        self._address, self._keys = address, keys
        self._deadline_secs = transfer_secs(state_bytes) + EVALUATION_SECS

    def evaluate(self, request: EvaluationRequest) -> Evaluation:
        """Have a state measured (see `Evaluate`).

        Raises:
          RoleLost: the worker could not be reached.
          WaitTimeout: the worker did not answer in time.
        """
        with Channel(self._address, self._keys, WORKER) as channel:
            evaluate, who = stub(channel, "Evaluator", "Evaluate"), f"the worker at {self._address}"
            found = call(
                evaluate,
                encode(request),
                self._deadline_secs,
                who=who,
                what="Evaluate",
                unreachable_secs=UNREACHABLE_SECS,
            )
            return decode(Evaluation, found)
