"""Every error a user or a role may meet, each with the exit code of the process that ends by it.

A message contains what happened, the two values that disagree, and what to change. Exit codes: 0 workload complete, 75
saved (run again), 1 refused input, 70 our fault, 130 a signal ended a command that is no run (a simulation, or a wait).
"""

from __future__ import annotations

EXIT_COMPLETED = 0
EXIT_REFUSED = 1
EXIT_FAILED = 70
EXIT_PREEMPTED = 75
RESTARTING = 76
"""Of a chief, to the supervisor alone: saved at a switch, at which all roles are to start again."""
EXIT_INTERRUPTED = 130


def printable(text: str) -> str:
    r"""Return a text without control characters: a peer's words must not drive the terminal that shows them.

    >>> printable("worker 0\x1b[31m")
    'worker 0\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "replace").decode() for char in text)


def described(error: BaseException) -> str:
    """Return an error's type and text; the type alone where it has no text, or where the text itself raises.

    >>> described(ValueError("a row that cannot be read")), described(KeyboardInterrupt())
    ('ValueError: a row that cannot be read', 'KeyboardInterrupt')
    """
    name = type(error).__name__
    try:
        text = str(error).strip()
    except BaseException:  # noqa: BLE001 it is the user's code that runs here, in the midst of another error's handling
        return name
    return f"{name}: {text}" if text else name


class HybridSyncError(Exception):
    """Base of all errors raised by HybridSync; `exit_code` is what a process that dies of it returns."""

    exit_code: int = EXIT_FAILED


class RefusedInput(HybridSyncError, ValueError):
    """Base of errors that the caller's input caused: nothing was lost, correct it and run again."""

    exit_code = EXIT_REFUSED


class ConfigError(RefusedInput):
    """A configuration value, flag or file that cannot be used."""


class PlanError(ConfigError):
    """A plan that does not parse, or whose shares do not make up the workload."""


class OptimizerError(ConfigError):
    """An optimizer that cannot be trained with, and how to pass it instead."""


class TaskError(ConfigError):
    """A task (model, loss, source) that does not meet the contract."""


class DataError(RefusedInput):
    """A data file that is missing, damaged or not what its format says."""


class CheckpointError(RefusedInput):
    """A checkpoint that cannot be saved, read or used by this run."""


class ResumeError(RefusedInput):
    """A resume whose configuration contradicts the run in the workdir."""


class HistoryError(RefusedInput):
    """A job history that is damaged, locked, absent or not ours."""


class NoAnswer(RefusedInput):
    """A plan of "auto" for a job whose switch point nobody has searched; the message says which command does."""


class NoTarget(RefusedInput):
    """A search for a switch point without an accuracy to reach."""


class WorkdirError(RefusedInput):
    """A workdir that is in use, absent, or not ours."""


class WorkdirTaken(HybridSyncError):
    """A workdir that another chief has taken over meanwhile; this one commits nothing more."""


class NotRunning(RefusedInput):
    """A command to a run that is not running, or not yet far enough to carry it out."""


class AddressError(RefusedInput):
    """An address that is refused or already in use."""


class SchemaMismatch(RefusedInput):
    """Two roles disagree on the leaves of the state: they have different models, optimizers or versions."""


class VersionMismatch(RefusedInput):
    """The packages of two roles are not of one minor series."""


class InvalidMessage(RefusedInput):
    """A message that decodes, but says what cannot be: a unit twice, a base from the future, units never issued."""


class UnknownRole(RefusedInput):
    """A role that this run has no place for, or that takes no part in the phase it speaks of."""


class Unauthenticated(RefusedInput):
    """A call without the token of the run that it reached, or of somebody whose certificate names nobody."""


class PermissionDenied(RefusedInput):
    """A call that the holder of this certificate may not make, or that speaks for another one."""


class CredentialsError(RefusedInput):
    """Certificates or keys that are missing, damaged, in the way, or open to other users."""


class DamagedState(HybridSyncError):
    """A state that arrived with other bits than it was captured with."""


class ServersApart(HybridSyncError):
    """The parameter servers disagree about the updates between them; the run cannot go on from what they hold."""


class Diverged(RefusedInput):
    """A training whose contributions are no longer finite numbers."""


class StalePhase(HybridSyncError):
    """A call that names a phase which is no longer the active one."""


class StaleIncarnation(HybridSyncError):
    """A call of a worker that has been replaced by a newer process."""


class StaleAgent(HybridSyncError):
    """A call of a host's agent whose attachment is over; it ends what runs under it, and attaches again."""


class AgentReplaced(StaleAgent):
    """A call of a host's agent whose place another agent has taken; it ends."""


class NotRegistered(HybridSyncError):
    """A call of a role that this chief has not heard of: it was restarted; register again and repeat the call."""


class PhaseBroken(HybridSyncError):
    """The active phase has lost somebody without whom it cannot go on; another phase follows from the newest state."""


class PhaseRevoked(HybridSyncError):
    """Thrown into a worker program at its next yield when its phase is revoked; not to be caught by it."""


class RoleLost(HybridSyncError):
    """A role that the run cannot go on without has died or stopped answering."""


class HandshakeRefused(RoleLost):
    """A role with which no TLS connection comes about: asking again would change nothing."""


class Busy(RoleLost):
    """A role that answers as many calls as it can, and had no place for this one until its deadline."""


class WaitTimeout(HybridSyncError, TimeoutError):
    """A wait that reached its deadline; the message names who is missing."""


class StillHeld(WaitTimeout):
    """A push that the protocol has not released yet; it goes on being held, and the same units find it again."""


class StoppedShort(HybridSyncError):
    """A run that was asked to stop, and could not save all that was applied: the last who held it is gone."""


class Preempted(HybridSyncError):
    """The run saved its state and stopped because it was asked to; run the same command again."""

    exit_code = EXIT_PREEMPTED
