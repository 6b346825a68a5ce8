"""How far away the store is, and how long anybody may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The link between systems and their store, and the limits of a run over it."""

    delay_ms: float = 30.0
    """What a request costs more; a connection and "100 Continue" do too."""
    other_delays_ms: tuple[float, ...] = (0.0, 100.0)
    """At which mounts and commits are measured too."""
    bandwidth_mb: float = 125.0
    """MB/s each way, for all connections of a system together."""
    row_budget_s: float = 600.0
    """How long one repetition may take."""
    prepare_budget_s: float = 1200.0
    """How long one step of a preparation may take, without any delay."""
    peer_files: int = 100_000
    """The largest generated tree that anybody but workspacefs gets."""
