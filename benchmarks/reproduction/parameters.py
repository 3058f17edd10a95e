"""Plans of the experiments, with every name of a protocol's parameter in this one place."""

from __future__ import annotations

BSP, ASP = "bsp", "asp"

HSP = {"bsp_server": "bsp_server", "hsp, turns alone": "hsp", "hsp": "hsp(stale=1)"}
"""The fair-shared barrier, HSP's turns alone, which are the default, and HSP with stale units."""

GRIDDED = {"hsp": HSP["hsp"]}
"""Protocols as the grid writes them where it does not use a default."""

RIPPLES_RATIOS = {
    "all-reduce": "bsp",
    "parameter server": "bsp_server",
    "AD-PSGD": "adpsgd",
    "P-Reduce": "preduce",
}
RIPPLES_ABLATION = {
    "naive": "preduce(buffer=false, division=false, slowdown=0)",
    "naive, buffer": "preduce(division=false, slowdown=0)",
    "buffer, division": "preduce(slowdown=0)",
    "buffer, division, filter": "preduce",
    "static": "preduce(groups=static)",
    "inter": "preduce(groups=inter)",
}
RIPPLES_SIZES = {size: f"preduce(size={size})" for size in (2, 3, 4, 6, 8)}
RIPPLES_FILTERS = {bound: f"preduce(slowdown={bound})" for bound in (1, 2, 4, 8, 16)}

PSPLUS_RATES = {"psplus": "psplus", "its blocking twin": "psplus(overlap=false)", "asp": ASP, "ssp": "ssp"}
PSPLUS_GATES = (0, 3)
"""Leads, in iterations, that SSP's gate allows."""
PSPLUS_GATED = {
    name: plan
    for lead in PSPLUS_GATES
    for name, plan in (
        (f"psplus, s = {lead}", f"psplus(staleness={lead})"),
        (f"its blocking twin, s = {lead}", f"psplus(staleness={lead}, overlap=false)"),
    )
}
PSPLUS_MODULATIONS = {kind: f"psplus(modulation={kind})" for kind in ("none", "schedule", "staleness", "progress")}

MODULATED_TWINS = {kind: f"psplus(modulation={kind}, overlap=false)" for kind in ("none", "staleness", "progress")}
"""The same modulations without overlap, which is asynchrony with an optimizer of each worker's own."""
ASP_RATES = {"none": ASP, "rate": "asp(staleness_rule=rate)"}
"""Asynchrony at one rate, and with a rate over the staleness, its own way to follow it."""


def hybrid(share: float) -> str:
    """Return the plan with so many percent of lock-step, then asynchrony.

    >>> hybrid(0), hybrid(6.25), hybrid(100)
    ('asp', 'bsp:6.25%,asp', 'bsp')
    """
    return ASP if share == 0 else BSP if share == 100 else f"bsp:{share:g}%,asp"


def asp_first(share: float) -> str:
    """Return the plan with so many percent of lock-step at its end.

    >>> asp_first(12.5)
    'asp:87.5%,bsp'
    """
    return f"asp:{100 - share:g}%,bsp"
