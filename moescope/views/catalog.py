"""All panels by key: what an address such as ``/data/RUN/waits.json`` can name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from moescope.views.model import Analysis
from moescope.views.panels import Panel
from moescope.views.panels import comm as panels_comm
from moescope.views.panels import gemm as panels_gemm
from moescope.views.panels import groups as panels_groups
from moescope.views.panels import host as panels_host
from moescope.views.panels import library as panels_library
from moescope.views.panels import load as panels_load
from moescope.views.panels import memory as panels_memory
from moescope.views.panels import path as panels_path
from moescope.views.panels import router as panels_router
from moescope.views.panels import run as panels_run
from moescope.views.panels import step as panels_step

PANELS: Mapping[str, Callable[[Analysis], Panel]] = {
    "parts": panels_step.parts_panel,
    "causes": panels_step.causes_panel,
    "path": panels_path.path_panel,
    "steps": panels_step.steps_panel,
    "waits": panels_comm.waits_panel,
    "edges": panels_comm.edges_panel,
    "transfers": panels_comm.transfers_panel,
    "groups": panels_groups.groups_panel,
    "stragglers": panels_groups.stragglers_panel,
    "collectives": panels_comm.collectives_panel,
    "library": panels_library.library_panel,
    "clock": panels_comm.clock_panel,
    "ranks": panels_load.rank_panel,
    "experts": panels_load.expert_panel,
    "intervals": panels_load.interval_panel,
    "history": panels_router.history_panel,
    "routers": panels_router.routers_panel,
    "traffic": panels_router.traffic_panel,
    "rates": panels_gemm.rates_panel,
    "losses": panels_gemm.losses_panel,
    "layerlosses": panels_gemm.layer_losses_panel,
    "expertlosses": panels_gemm.expert_losses_panel,
    "host": panels_host.host_panel,
    "idle": panels_host.idle_panel,
    "launches": panels_host.launches_panel,
    "memory": panels_run.memory_panel,
    "peaks": panels_run.peaks_panel,
    "memorytokens": panels_memory.tokens_panel,
    "memorytrades": panels_memory.trades_panel,
    "drivercalls": panels_memory.driver_panel,
    "steppeaks": panels_memory.step_peaks_panel,
    "snapshots": panels_memory.snapshots_panel,
    "sources": panels_run.sources_panel,
    "missing": panels_run.missing_panel,
    "provenance": panels_run.provenance_panel,
}
"""Panel key -> the function that fills it; the key is that of the panel it returns."""
