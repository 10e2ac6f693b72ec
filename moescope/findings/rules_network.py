"""The rule about links that are slower than they should be."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from moescope.align import SlowLink
from moescope.findings.inputs import Inputs, cost_by_rank
from moescope.findings.model import Finding
from moescope.findings.network_reasons import likely_reasons
from moescope.findings.scale import NOTICEABLE, ms, severity

MEASURED = ("ranks that do not use it", "groups beside it", "baseline")
"""What a link is compared with that was measured; a data sheet says what should be."""


def slow_network(inputs: Inputs) -> Iterator[Finding]:
    """A rank's or host's links are slower than the others', or a group's than those of the groups beside it.

    Waits alone say only that a transfer took longer on one rank; a link is accused where there is something to compare.
    """
    causes = inputs.cause_ns("slow_network").filter(pl.col("transfer_ns") > 0)
    cost = float(causes["transfer_ns"].sum())
    share = inputs.share(cost)
    if share < NOTICEABLE:
        return
    rank = int(causes["culprit"][0]) if causes["culprit"][0] is not None else None
    link = _link(inputs, rank)
    yield Finding(
        code="slow-network",
        severity=severity(share),
        rank=rank,
        layer=None,
        cost_ns_per_step=round(cost),
        share_of_step=share,
        claim=f"{_claim(link)}: {ms(cost)} per step.",
        advice="Check those links (NIC, NVLink, cables, PCIe width), the interface and transport the library chose, "
        "and congestion from other jobs; compare with a baseline of the same allocation.",
        confidence=_confidence(inputs, link, cost),
        basis=inputs.finding_basis if link is None or link.compared_with in MEASURED else "inferred",
        evidence={
            "page": "communication",
            "cost_by_rank_ns": cost_by_rank(causes),
            **(_evidence(link) if link is not None else {}),
            **({"likely_reasons": _reasons(inputs, link)} if link is not None else {}),
            "formula": "span of exchanges beyond what links of the usual speed take, slowest group of each turn",
        },
    )


def _link(inputs: Inputs, rank: int | None) -> SlowLink | None:
    """The slow link of the costliest culprit; without one the slowest link of a whole host."""
    links = [link for link in inputs.alignment.slow_links if (link.ranks == (rank,)) == (rank is not None)]
    return min(links, key=lambda link: link.factor, default=None)


def _claim(link: SlowLink | None) -> str:
    if link is None:
        return "Transfers of one group run slower than those of the groups beside it"
    single = len(link.ranks) == 1
    whose = f"Rank {link.ranks[0]}'s links carry" if single else f"Links of ranks {_few(link.ranks)} carry"
    what = f"{link.rate_bytes_per_ns:.3g} GB/s, {link.factor:.0%} of {_USUAL[link.compared_with]}"
    return f"{whose} {what}, and every exchange with {'it' if single else 'them'} lasts as long as that takes"


_USUAL = {
    "ranks that do not use it": "the other ranks'",
    "groups beside it": "those of the groups beside it",
    "baseline": "the baseline's",
    "data sheet": "what links of this device carry by their data sheet",
    "nothing": "the others' at most",
}


def _few(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks[:6])) + (", ..." if len(ranks) > 6 else "")


def _confidence(inputs: Inputs, link: SlowLink | None, cost: float) -> str:
    if link is None:
        return "medium"
    known = inputs.confidence(cost)
    return known if link.compared_with in MEASURED or known == "low" else "medium"


def _reasons(inputs: Inputs, link: SlowLink) -> dict[str, str]:
    return likely_reasons(link.factor, slow_ranks=link.ranks, num_ranks=len(inputs.ranks))


def _evidence(link: SlowLink) -> dict[str, object]:
    return {
        "tier": link.tier,
        "slow_ranks": list(link.ranks[:64]),
        "share_of_usual_speed": link.factor,
        "gb_per_s": link.rate_bytes_per_ns,
        "compared_with": link.compared_with,
        "num_exchanges": link.num_exchanges,
    }
