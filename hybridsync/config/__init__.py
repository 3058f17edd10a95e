"""The configuration of a run: values, how a file gives them, how the command line changes them.

>>> config = apply_overrides(RunConfig(workload=4000, unit_size=32), ["optimizer.learning_rate=0.1"])
>>> config.optimizer.learning_rate, config.plan
(0.1, 'bsp:12.5%,asp')
"""

from hybridsync.config.device_config import DeviceConfig
from hybridsync.config.injected_stragglers import AS_FAST, NO_STRAGGLERS, Slowness, Straggler, Stragglers, together
from hybridsync.config.loading import LoadedConfig, check_present, explained, load_config, run_file
from hybridsync.config.loading_without_jax import load_values
from hybridsync.config.overrides import apply_overrides
from hybridsync.config.policy_config import PolicyConfig
from hybridsync.config.resume_rules import check_resumable, flattened, restore_values, to_json
from hybridsync.config.run_config import (
    CheckpointConfig,
    Empty,
    EmulationConfig,
    HangConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    TelemetryConfig,
)

__all__ = [
    "AS_FAST",
    "NO_STRAGGLERS",
    "CheckpointConfig",
    "DeviceConfig",
    "Empty",
    "EmulationConfig",
    "HangConfig",
    "LoadedConfig",
    "OptimizerConfig",
    "PolicyConfig",
    "RunConfig",
    "ScheduleConfig",
    "Slowness",
    "Straggler",
    "Stragglers",
    "TelemetryConfig",
    "apply_overrides",
    "check_present",
    "check_resumable",
    "explained",
    "flattened",
    "load_config",
    "load_values",
    "restore_values",
    "run_file",
    "to_json",
    "together",
]
