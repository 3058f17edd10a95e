"""How long a unit's gradient takes at least on a worker's devices, by which their use is measured."""

from __future__ import annotations

from typing import Any

import jax
from absl import logging

from hybridsync.devices.peaks import peak_flops
from hybridsync.training.compiled_programs import Parameters, Programs


def peak_secs(
    programs: Programs, contribution: Any, parameters: Parameters, batch: dict[str, Any], *, wire: str, worker: int
) -> float:
    """Return the seconds of a unit at the peak of its devices; 0 where that is not known, as on a CPU.

    Args:
      programs: programs of the run.
      contribution: contribution of the unit, which has been computed.
      parameters: parameters that it was computed on.
      batch: raw examples of its unit.
      wire: number format of the contribution.
      worker: worker that computed it.
    """
    device = next(iter(jax.tree.leaves(contribution)[0].sharding.device_set))
    peak = peak_flops(device.device_kind)
    if not peak:
        return 0.0
    try:
        return programs.gradient_flops(parameters, batch, wire, worker) / peak
    except Exception as error:  # noqa: BLE001 a backend that counts none: no reason to end
        logging.warning("The use of %s is not measured: XLA counts no operations (%s).", device.device_kind, error)
        return 0.0
