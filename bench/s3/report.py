"""The table of workloads with a far store: a line for each workload and system."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import cast

from bench.s3.traffic import Traffic
from bench.tables import Row, count, line, megabytes, short

_HEAD = (
    "workload", "system", "k", "time", "p99", "requests", "depth", "GETs", "kB/GET", "HEADs",
    "LISTs", "PUTs", "MB in", "of it data", "MB out", "errors", "CPU s", "memory MB", "stored MB",
)  # fmt: skip


def middle(traffics: Sequence[Traffic]) -> dict[str, float | None] | None:
    """Return the median of each count over the repetitions; None: nothing was counted."""
    if not traffics:
        return None
    columns: dict[str, list[int | None]] = {}
    for traffic in traffics:
        for name, value in asdict(traffic).items():
            columns.setdefault(name, []).append(value)
    return {
        name: None if None in values else median(cast("list[int]", values))
        for name, values in columns.items()
    }


def facts_text(facts: Mapping[str, object]) -> str:
    """Return what a reader must know of the link."""
    found = facts.get("s3")
    if not isinstance(found, dict) or not found:
        return "The link was not measured.\n"
    return (
        f"Store: {found['server']}. Link: a request costs {found['delay_ms']:g} ms more, "
        f"{found['bandwidth_mb']:g} MB/s each way; a small GET through it took "
        f"{found['get_ms']} ms, 32 MB in one GET {found['get_mb_s']} MB/s. A repetition is given "
        f"up after {found['row_budget_s']:g} s; its line then says how many requests there were.\n"
    )


def table(rows: Iterable[Row]) -> str:
    """Return the table."""
    lines = [line(_HEAD), line(["---", "---", *["---:"] * (len(_HEAD) - 2)])]
    seen = None
    for row in sorted_by_workload(rows):
        title = f"{row['title']} (`{row['workload']}`)" if row["workload"] != seen else ""
        seen = row["workload"]
        lines.append(_line(title, row))
    return "\n".join(lines) + "\n"


def sorted_by_workload(rows: Iterable[Row]) -> list[Row]:
    """Return the rows with those of a workload together, in the order of the first of each."""
    found: dict[object, list[Row]] = {}
    for row in rows:
        found.setdefault(row["workload"], []).append(row)
    return [row for group in found.values() for row in group]


def _line(title: str, row: Row) -> str:
    walls = cast("list[float]", row["walls_s"])
    traffic = cast("dict[str, float | None]", row["traffic"] or {})
    gets, get_bytes = traffic.get("gets"), traffic.get("get_bytes")
    return line(
        [
            title,
            str(row["system"]),
            str(len(walls)),
            _time(row, row["median_s"]),
            _time(row, row["p99_s"]) if row["percentiles"] else "",
            count(traffic.get("requests")),
            count(traffic.get("depth")),
            count(gets),
            short(get_bytes / gets / 1e3) if gets and get_bytes else "—",
            count(traffic.get("heads")),
            count(traffic.get("lists")),
            count(traffic.get("puts")),
            _mb(traffic.get("in_bytes")),
            _mb(traffic.get("data_bytes")),
            _mb(traffic.get("out_bytes")),
            count(traffic.get("errors")),
            f"{row['daemon_cpu_s']:.2f}" if isinstance(row["daemon_cpu_s"], float) else "—",
            megabytes(row["peak_pss_bytes"] or row["daemon_peak_rss_bytes"]),
            megabytes(row["stored_bytes"]),
        ]
    )


def _time(row: Row, seconds: object) -> str:
    if not isinstance(seconds, float):
        return "failed" if row["problem"] else "—"
    if row["is_given_up"]:
        return f"> {seconds:,.0f} s"
    size_bytes, ops = cast("int", row["size_bytes"]), cast("int", row["ops"])
    match row["unit"]:
        case "ms":
            return f"{short(seconds * 1000)} ms"
        case "MB/s":
            files = f" ({ops / seconds:,.0f} files/s)" if "import" in str(row["workload"]) else ""
            return f"{short(size_bytes / 1e6 / seconds)} MB/s{files}"
        case _:
            return f"{short(seconds)} s"


def _mb(value: float | None) -> str:
    return "—" if value is None else f"{value / 1e6:,.2f}"
