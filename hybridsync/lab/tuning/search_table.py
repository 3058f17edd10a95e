"""Shows a search: a row a setting, and what its answer costs and saves."""

from __future__ import annotations

from rich.table import Table

from hybridsync.core.counted import counted
from hybridsync.lab.tuning.search_rules import LOCK_STEP, Search, Setting, percent, plan_of


def table(search: Search) -> Table:
    """Return the settings tried so far, in the order of the search."""
    drawn = Table(box=None, pad_edge=False)
    drawn.add_column("plan", no_wrap=True)
    for name in ("runs", "accuracy", "sd", "converged", "seconds a run"):
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_column("", no_wrap=True)
    for setting in search.settings:
        mean, spread = setting.mean, setting.spread
        cells = (
            plan_of(setting.share),
            f"{len(setting.outcomes)} of {search.rules.runs}",
            "-" if mean is None else f"{mean:.4f}",
            "-" if spread is None else f"{spread:.4f}",
            "-" if setting.converged is None else f"{setting.converged:.4f}",
            f"{setting.seconds / len(setting.outcomes):,.1f}" if setting.outcomes else "-",
            verdict_of(search, setting),
        )
        drawn.add_row(*cells)
    return drawn


def next_line(search: Search) -> str:
    """Return which run is made next, and what is known so far."""
    assert search.missing is not None, "the search has ended"
    share, repeat = search.missing
    known = f"; {percent(search.share)} is good enough" if search.target is not None else ""
    below = f", {percent(search.below)} is not" if search.below else ""
    return f"{plan_of(share)}: run {repeat + 1} of {search.rules.runs}{known}{below}"


def verdict_lines(search: Search) -> list[str]:
    """Return what a finished search comes to: answer, cost, break-even, confidence."""
    assert search.target is not None, "the search has not ended"
    cost, bound = search.cost, search.target - search.rules.tolerance
    lines = [
        f"answer: {plan_of(search.share)} (accuracy at least {bound:.4f}: target {search.target:.4f}, tolerance "
        f"{search.rules.tolerance:g}); next smaller share tried: {percent(search.below) if search.below else 'none'}"
    ]
    runs = sum(len(setting.outcomes) for setting in search.settings)
    price = f"{cost.bsp_runs:.1f} BSP runs" if cost.bsp_runs is not None else "BSP's time is not known"
    lines.append(f"cost: {runs} runs, {cost.seconds:,.0f} s, {price}")
    if cost.break_even is not None and cost.bsp_secs is not None and cost.answer_secs is not None:
        lines.append(
            f"break-even: after {counted(cost.break_even, 'more run')} of this job, "
            f"each {cost.bsp_secs / cost.answer_secs:.2f} "
            "times as fast as pure BSP"
        )
    elif cost.bsp_secs is None or cost.answer_secs is None:
        lines.append("break-even: not known; it takes the time of pure BSP, or of a second share")
    else:
        lines.append("break-even: never; a run of the answer is no faster than one of pure BSP")
    told = search.confidence
    below = " and the next smaller one tried is not" if search.below else ""
    lines.append(
        "confidence: not known; a single run of a setting tells no spread"
        if told is None
        else f"confidence: {told:.1%} at least that this share is good enough{below}"
    )
    return lines


def verdict_of(search: Search, setting: Setting) -> str:
    """Return what a setting was found to be."""
    if setting.share == LOCK_STEP:
        return "gives the target"
    if setting.accepted is None:
        return "under way"
    doubt = "" if setting.wrong is None else f", wrong with {setting.wrong:.2%}"
    if setting.diverged:
        return "rejected: diverged"
    return ("good enough" if setting.accepted else "rejected") + doubt
