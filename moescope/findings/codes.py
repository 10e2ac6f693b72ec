"""The codes of all findings: stable names for scripts, each with a page in ``docs/findings/``."""

FINDING_CODES: dict[str, str] = {
    "load-imbalance": "some ranks hold hotter experts than others, and the rest wait for them",
    "slow-rank": "a rank takes longer than the others for the same work",
    "slow-network": "transfers run far below what the links can do",
    "volume-imbalance": "one rank sends or receives more bytes than the others, and the exchange ends with it",
    "pipeline-bubbles": "stages of a pipeline wait for each other: uneven stages, or few microbatches",
    "exposed-communication": "communication is not hidden behind compute",
    "small-gemm": "matrix products are too small for the device's rate",
    "host-bound": "the device waits for the host to launch work",
    "device-idle": "the device idles although its next work was launched",
    "memory-peak": "a rank comes close to its device's memory, or far above the other ranks",
    "allocator-stall": "allocations inside the step stall the device",
    "recompute-cost": "activation recomputation takes a noticeable part of the step",
    "router-collapse": "the router sends almost everything to few experts",
    "dropped-tokens": "experts over capacity drop tokens",
    "clock-uncertain": "the hosts' clocks are known too loosely for the waits between them",
    "incomplete-input": "part of the input is missing or damaged",
    "balanced": "nothing noticeable is lost to imbalance, waiting or slow ranks",
}
"""Finding code -> what it means in one line."""

SEVERITIES = ("good", "info", "warning", "critical")
"""From harmless to grave."""
