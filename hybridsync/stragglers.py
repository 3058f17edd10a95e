"""Finds stragglers in any training loop: the detector of HybridSync's runs, which needs no other package.

    >>> from hybridsync.stragglers import Detector
    >>> detector = Detector()
    >>> detector.begin(range(4))
    >>> for step in range(200):
    ...     for rank in range(4):
    ...         secs = 0.08 if rank == 2 and step >= 50 else 0.02  # what the rank's own work took in this step
    ...         for decision in detector.observe(rank, [secs]):
    ...             print(f"step {step}: rank {decision.worker}, {decision.rate:.0f} of {decision.centre:.0f} steps/s")
    step 59: rank 2, 12 of 50 steps/s
    >>> detector.flagged
    (2,)

`observe` takes the seconds of the rank's own work, without waits for others: the whole step takes all ranks the same
time. A rank is flagged once, and cleared once when it is as fast as the others again; `Decision.flagged` says which.
`docs/parts.md` has a loop of several processes.
"""

from hybridsync.policies.straggler_detector import Decision, Detector, PaperRule, RobustRule, Rule

__all__ = ["Decision", "Detector", "PaperRule", "RobustRule", "Rule"]
