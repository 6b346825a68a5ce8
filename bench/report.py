"""From results to a JSON document, and from such a document to tables in Markdown."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median_low
from typing import Final, cast

from bench.failures import BenchError
from bench.measure import median, percentile
from bench.runner import Result
from bench.s3 import report as far_table
from bench.tables import TIMES, Row, count, line, megabytes, short

FORMAT: Final = 1
MEMORY_AIM_BYTES: Final = 40_000_000
MEMORY_AIM_PER_INODE: Final = 500
Cells = dict[str, Row]


def document(
    facts: Mapping[str, object], versions: Mapping[str, str], results: Iterable[Result]
) -> dict[str, object]:
    """Return everything that a run found, as a document that can be kept."""
    return {
        "format": FORMAT,
        "facts": dict(facts),
        "versions": dict(versions),
        "results": [_result_row(result) for result in results],
    }


def save(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    temporary.replace(path)


def save_json(path: Path, found: Mapping[str, object]) -> None:
    """Write the document."""
    save(path, json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def load_json(path: Path) -> dict[str, object]:
    """Read a document that `save_json` wrote."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as exc:
        raise BenchError(f"{path} cannot be read: {exc}") from exc
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise BenchError(f"{path} is no result of this version of the harness")
    return found


def put_tables(path: Path, tables: Mapping[str, str]) -> None:
    """Put each table between its marks in a Markdown file; a file without marks becomes all."""
    text = path.read_text() if path.exists() else ""
    for name, table in tables.items():
        head, begin, rest = text.partition(f"<!-- bench {name}: begin -->")
        _, end, tail = rest.partition(f"<!-- bench {name}: end -->")
        if not begin or not end:
            text = "\n".join(tables.values())
            break
        text = f"{head}{begin}\n\n{table}\n{end}{tail}"
    save(path, text)


def tables(found: Mapping[str, object]) -> dict[str, str]:
    """Return the report in Markdown: what was run of "table" (local stores) and "s3 table"."""
    rows = cast("list[Row]", found["results"])
    facts = cast("dict[str, object]", found["facts"])
    versions = cast("dict[str, str]", found["versions"])
    local = [row for row in rows if not row.get("is_far")]
    far = [row for row in rows if row.get("is_far")]
    parts = {}
    if local or not far:
        parts["table"] = _local_table(local, facts, versions)
    if far:
        head = [_facts_text(facts, versions), far_table.facts_text(facts)]
        parts["s3 table"] = "\n".join([*head, far_table.table(far), *_problems(far)])
    return parts


def _local_table(rows: list[Row], facts: Mapping[str, object], versions: Mapping[str, str]) -> str:
    systems = [name for name in versions if any(row["system"] == name for row in rows)]
    by_workload: dict[str, Cells] = {}
    for row in rows:
        by_workload.setdefault(str(row["workload"]), {})[str(row["system"])] = row
    plain = [cells for cells in by_workload.values() if not _any(cells)["percentiles"]]
    timed = [cells for cells in by_workload.values() if _any(cells)["percentiles"]]
    parts = [_facts_text(facts, versions)]
    if plain:
        parts += ["### Times\n", _times(plain, systems)]
    if timed:
        parts += ["### Commands\n", _commands(timed)]
    if plain:
        parts += ["### What it costs\n", _costs(plain, systems)]
    return "\n".join([*parts, *_problems(rows)])


def _problems(rows: Iterable[Row]) -> list[str]:
    problems = [_problem(row) for row in rows if row["problem"]]
    return ["### No result\n", *problems, ""] if problems else []


def _result_row(result: Result) -> dict[str, object]:
    workload, samples = result.workload, [] if result.problem else result.samples
    walls = [sample.wall_s for sample in samples]
    work = samples[0].work if samples else None
    messages = [sample.messages for sample in samples if sample.messages is not None]
    totals = [sum(counts.values()) for counts in messages]
    return {
        "workload": workload.name,
        "title": workload.title,
        "system": result.system,
        "unit": workload.unit.value,
        "percentiles": workload.shows_percentiles,
        "is_comparable": workload.is_comparable,
        "aim_ext4": workload.aim_ext4,
        "aim_juicefs": workload.aim_juicefs,
        "aim_ms": workload.aim_ms,
        "walls_s": walls,
        "median_s": median(walls) if walls else None,
        "p50_s": percentile(walls, 50) if walls else None,
        "p99_s": percentile(walls, 99) if walls else None,
        "ops": work.ops if work else None,
        "size_bytes": median_low(s.work.size_bytes for s in samples) if samples else None,
        "daemon_cpu_s": median([sample.daemon_cpu_s for sample in samples]) if samples else None,
        "daemon_peak_rss_bytes": max((s.daemon_peak_rss_bytes for s in samples), default=None),
        "messages": median(totals) if totals else None,
        "messages_by_kind": messages[-1] if messages else None,
        "inodes": max((s.inodes for s in samples if s.inodes is not None), default=None),
        "driver_cpu_s": median([sample.driver_cpu_s for sample in samples]) if samples else None,
        "stored_bytes": result.stored_bytes,
        "is_far": workload.shows_traffic,
        "is_given_up": result.is_given_up,
        "peak_pss_bytes": max((s.peak_pss_bytes or 0 for s in samples), default=0) or None,
        "traffic": far_table.middle([s.traffic for s in samples if s.traffic is not None]),
        "traffics": [asdict(s.traffic) for s in samples if s.traffic is not None],
        "problem": result.problem,
    }


def _facts_text(facts: Mapping[str, object], versions: Mapping[str, str]) -> str:
    memory_gib = cast("int", facts["memory_bytes"]) / 2**30
    kernel = ".".join(str(facts["kernel"]).split(".")[:2])
    cold = (
        "page cache dropped"
        if facts["can_drop_page_cache"]
        else "**the page cache could not be dropped: cold rows are cold only in the mount**"
    )
    state = "" if facts.get("is_complete") else " **This run was not finished.**"
    return (
        f"{facts['time']}, `{facts['command']}`, seed {facts['seed']}: {facts['cpus']} cores, "
        f"{memory_gib:.0f} GiB, Linux {kernel}, {facts['disk']}, 4 KiB "
        f"and fsync {facts['fsync_ms']} ms, a small durable store write "
        f"{facts['store_write_ms']} ms, load before {_load_text(facts)}, "
        f"Python {facts['python']}, {facts['git']}; "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}. "
        f"Cold: {cold}, mounted anew.{state}\n"
    )


def _times(workloads: Sequence[Cells], systems: Sequence[str]) -> str:
    lines = [
        line(["workload", "k", "unit", *systems, "÷ ext4", "aim", "JuiceFS ÷ ours", "aim"]),
        line(["---", *["---:"] * (len(systems) + 6)]),
    ]
    for cells in workloads:
        ours, ext4, juicefs = (cells.get(name) for name in ("workspacefs", "ext4", "juicefs"))
        one = _any(cells)
        if not one["is_comparable"]:
            ext4 = juicefs = None
        slower, faster = _ratio(ours, ext4), _ratio(juicefs, ours)
        lines.append(
            line(
                [
                    f"{one['title']} (`{one['workload']}`)",
                    str(max(len(cast("list[float]", row["walls_s"])) for row in cells.values())),
                    str(one["unit"]),
                    *(_value(cells.get(name)) for name in systems),
                    _times_text(slower),
                    _aim_text("≤", one["aim_ext4"], slower),
                    _times_text(faster),
                    _aim_text("≥", one["aim_juicefs"], faster),
                ]
            )
        )
    return "\n".join(lines) + "\n"


def _commands(workloads: Sequence[Cells]) -> str:
    lines = [
        line(["command", "system", "k", "p50 ms", "p99 ms", "aim (p99)", "memory MB"]),
        line(["---", "---", *["---:"] * 5]),
    ]
    for cells in workloads:
        for name, row in cells.items():
            walls = cast("list[float]", row["walls_s"])
            aim = cast("float | None", row["aim_ms"]) if name == "workspacefs" else None
            p50, p99 = cast("float | None", row["p50_s"]), cast("float | None", row["p99_s"])
            met = "" if aim is None or p99 is None else " ✓" if p99 * 1000 <= aim else " ✗"
            lines.append(
                line(
                    [
                        f"{row['title']} (`{row['workload']}`)",
                        name,
                        str(len(walls)),
                        "failed" if p50 is None else short(p50 * 1000),
                        "failed" if p99 is None else short(p99 * 1000),
                        "" if aim is None else f"≤ {aim:g}{met}",
                        megabytes(row["daemon_peak_rss_bytes"]),
                    ]
                )
            )
    return "\n".join(lines) + "\n"


def _costs(workloads: Sequence[Cells], systems: Sequence[str]) -> str:
    daemons = [name for name in systems if name != "ext4"]
    lines = [
        line(
            [
                "workload",
                *(f"messages, {name}" for name in daemons),
                *(f"CPU s, {name}" for name in daemons),
                *(f"memory MB, {name}" for name in daemons),
                "memory aim MB",
                *(f"stored MB, {name}" for name in systems),
            ]
        ),
        line(["---", *["---:"] * (len(daemons) * 3 + len(systems) + 1)]),
    ]
    for cells in workloads:
        rows = [cells.get(name) for name in daemons]
        lines.append(
            line(
                [
                    str(_any(cells)["title"]),
                    *(count(row and row["messages"]) for row in rows),
                    *(_seconds(row and row["daemon_cpu_s"]) for row in rows),
                    *(megabytes(row and row["daemon_peak_rss_bytes"]) for row in rows),
                    megabytes(_memory_aim_bytes(cells.get("workspacefs"))),
                    *(megabytes((cells.get(n) or {}).get("stored_bytes")) for n in systems),
                ]
            )
        )
    return "\n".join(lines) + "\n"


def _memory_aim_bytes(row: Row | None) -> int | None:
    inodes = row["inodes"] if row is not None else None
    return MEMORY_AIM_BYTES + MEMORY_AIM_PER_INODE * inodes if isinstance(inodes, int) else None


def _load_text(facts: Mapping[str, object]) -> str:
    return str(cast("list[float]", facts["load_before"])[0])


def _problem(row: Row) -> str:
    text = " ".join(str(row["problem"]).split())[:400]
    return f"- `{row['workload']}` on {row['system']}: {text}"


def _any(cells: Cells) -> Row:
    return next(iter(cells.values()))


def _value(row: Row | None) -> str:
    if row is None or (not row["is_comparable"] and row["system"] != "workspacefs"):
        return "—"
    seconds = row["median_s"]
    if not isinstance(seconds, float):
        return "failed"
    match row["unit"]:
        case "ms":
            return short(seconds * 1000)
        case "µs/op":
            return short(seconds * 1e6 / cast("int", row["ops"]))
        case "MB":
            return short(cast("int", row["size_bytes"]) / 1e6)
        case "MB/s":
            text = short(cast("int", row["size_bytes"]) / 1e6 / seconds)
            ops = cast("int", row["ops"])
            is_import = str(row["workload"]).startswith("import.tree")
            return f"{text} ({ops / seconds:,.0f} files/s)" if is_import else text
        case _:
            return short(seconds)


def _ratio(of: Row | None, to: Row | None) -> float | None:
    if of is None or to is None:
        return None
    above, below = of["median_s"], to["median_s"]
    if not isinstance(above, float) or not isinstance(below, float) or below <= 0:
        return None
    return above / below


def _times_text(ratio: float | None) -> str:
    return "" if ratio is None else f"{short(ratio)}{TIMES}"


def _aim_text(sign: str, aim: object, ratio: float | None) -> str:
    if not isinstance(aim, float):
        return ""
    if ratio is None:
        return f"{sign} {aim:g}{TIMES}"
    is_met = ratio <= aim if sign == "≤" else ratio >= aim
    return f"{sign} {aim:g}{TIMES} {'✓' if is_met else '✗'}"


def _seconds(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) else "—"
