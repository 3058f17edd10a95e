"""Which systems are measured, what each of them does of the work, and where it is installed."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peers.work import ASYNC, LOCKSTEP, AllReduce, Digits, Transfer, Work

OURS = "hybridsync"
OUR_GLOO = "hybridsync_gloo"


@dataclass(frozen=True)
class System:
    """A system that does some of the work.

    Args:
      title: for people.
      environment: its folder and its requirements; "" for ours.
      script: module below `scripts/`; "" for ours.
      digits: kinds of synchronisation in which it trains digits.
      transfers, sums: whether it does these.
      options: more arguments of the script.
    """

    title: str
    environment: str = ""
    script: str = ""
    digits: tuple[str, ...] = ()
    transfers: bool = False
    sums: bool = False
    options: tuple[str, ...] = ()

    def does(self, work: Work) -> bool:
        """Whether it can be measured on this work."""
        match work:
            case Digits():
                return bool(self.digits)
            case Transfer():
                return self.transfers
            case AllReduce():
                return self.sums


SYSTEMS = {
    OURS: System("HybridSync", digits=(LOCKSTEP, ASYNC), transfers=True, sums=True),
    OUR_GLOO: System("HybridSync, gloo"),  # does nothing by itself: its sums are measured in turns with ours
    "torch_ddp": System("PyTorch DDP", "torch", "torch_ddp", digits=(LOCKSTEP,), sums=True),
    "torch_rpc": System("PyTorch RPC", "torch", "torch_rpc", digits=(ASYNC,), transfers=True),
    "torch_rpc_tcp": System("PyTorch RPC, TCP", "torch", "torch_rpc", transfers=True, options=("--tcp",)),
    "tensorflow": System("TensorFlow PS", "tensorflow", "tensorflow_ps", digits=(ASYNC,), transfers=True),
    "ray": System("Ray actor", "ray", "ray_ps", digits=(ASYNC,), transfers=True),
    "mxnet": System("MXNet, ps-lite", "mxnet", "mxnet_ps", digits=(ASYNC,), transfers=True),
}
"""By the name that results have them under; ours first."""

ENVIRONMENTS = tuple(dict.fromkeys(system.environment for system in SYSTEMS.values() if system.environment))
