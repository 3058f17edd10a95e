"""A cell that runs a published straggler scenario on the fitted machines (see `benchmarks.syncswitch_scenarios`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.reproduction.definition import Given, Row
from benchmarks.syncswitch_scenarios import PLAN, SCENARIOS, WORKLOAD, Guard, Online, outcome


@dataclass(frozen=True)
class Late:
    """Simulates a policy while machines are late.

    Args:
      number: of the scenario.
      online: the policy.
      guard: of the policy.
      is_late: whether the machines are late at all; False tells what the best of policies could save.
    """

    number: int
    online: Online
    guard: Guard = "on"
    is_late: bool = True

    def definition(self) -> Any:
        return [self, SCENARIOS[self.number], WORKLOAD, PLAN]

    def needs(self, given: Given) -> str:
        return ""

    def measure(self, given: Given) -> Row:
        made = outcome(self.number, self.online, self.guard, is_late=self.is_late)
        return {
            "seconds": round(made.seconds, 2),
            "lock_step_secs": round(made.lock_step_secs, 1),
            "flagged_after": " ".join(f"{steps:.1f}" for steps in made.flagged_after),
        }
