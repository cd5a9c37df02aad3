"""``actnn bench tables``: write the committed records of benchmarks as tables into a Markdown file.

A table stands between ``<!-- table:NAME -->`` and ``<!-- end -->`` and is made from ``results/NAME.jsonl``; of several
records of one contestant the newest counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from actnn.bench import accuracies, harness
from actnn.cli.arguments import Parser
from actnn.errors import ConfigError

Record = dict[str, Any]
PLACE = re.compile(r"(<!-- table:(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main(argv: Sequence[str]) -> int:
    """Rewrite the tables of a file."""
    parser = Parser(prog="actnn bench tables", description=__doc__.partition(": ")[2])
    parser.add_argument("--file", type=Path, default=Path("README.md"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a table is out of date")
    arguments = parser.parse_args(argv)
    text = arguments.file.read_text()
    new = PLACE.sub(lambda place: f"{place[1]}{table(place[2], arguments.results)}\n{place[3]}", text)
    if arguments.check:
        return int(new != text)
    arguments.file.write_text(new)
    return 0


def table(name: str, results: Path) -> str:
    """Return one table as Markdown, with the machine and the versions below it."""
    if name not in TABLES:
        raise ConfigError(f"there is no table {name!r}: expected one of {', '.join(TABLES)}.")
    source = results / f"{name}.jsonl"
    if not source.exists():
        raise ConfigError(f"{source} does not exist: run the benchmark with --out {source} first.")
    records = harness.records(source)
    if not records:
        raise ConfigError(f"{source} holds no record.")
    heading, rows = TABLES[name](records)
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(["| " + " | ".join(line) + " |" for line in lines] + ["", described(records[-1]["machine"])])


def step(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Return the table of ``bench step``: one row a model and contestant."""
    newest: Mapping[tuple[Any, ...], Record] = {
        (record["model"], record["batch"], record["size"], trainer(record)): record for record in records
    }
    heading = [
        "model, batch, size",
        "training",
        "step",
        "time",
        "kept for backward",
        "kept",
        "grown by forward",
        "peak",
    ]
    rows = []
    # all contestants of a model side by side, whenever they were measured
    models = list(dict.fromkeys(key[:3] for key in newest))
    for (model, batch, size, name), record in sorted(newest.items(), key=lambda entry: models.index(entry[0][:3])):
        rows.append(
            [
                f"{model}, {batch}, {size}",
                name,
                f"{record['step_default']['seconds']:.2f} s",
                f"{record['time_ratio_default']:.2f}",
                f"{record['kept_bytes'] / 1e6:.0f} MB",
                f"{record['kept_ratio']:.1f}×",
                f"{record['forward_ratio']:.1f}×",
                f"{record['peak_bytes'] / 1e6:.0f} MB, {record['peak_ratio']:.1f}×",
            ]
        )
    return heading, rows


def trainer(record: Record) -> str:
    """Return how one contestant of ``bench step`` trains."""
    name = record["contestant"]
    return name if name in ("exact", "checkpoint") else f"**actnn {record['level']}, {record['bits']:g} bits**"


def variance(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Return the table of ``bench variance``: one row a model and scheme."""
    newest = {(record["model"], record["data"], record["batch"], record["scheme"]): record for record in records}
    heading = ["model, images, batch", "scheme", "kept", "variance", "of L2's", "predicted", "rank correlation"]
    rows = [
        [
            f"{model}, {data}, {batch}",
            scheme,
            f"{record['kept_ratio']:.1f}×",
            f"{record['variance']:.4f}",
            f"{record['ratio_to_l2']:.2f}",
            f"{record['predicted']:.4f}",
            f"{record['rank_correlation']:.2f}",
        ]
        for (model, data, batch, scheme), record in newest.items()
    ]
    return heading, rows


def convergence(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Return the table of ``bench convergence``: one row a level, for each group of equal settings."""
    columns = accuracies.widths(records)
    heading = ["training", "level", *(f"{bits:g} bits" for bits in columns)]
    return heading, [
        [words, *row]
        for words, runs in accuracies.by_settings(records).items()
        for row in accuracies.rows(accuracies.cells(runs), columns)
    ]


def described(machine: Record) -> str:
    """Return the machine of a record as one sentence."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB; Python {machine['python']}, "
        f"{versions}; commit {machine['commit']}, {machine['date']}."
    )


TABLES: dict[str, Callable[[Sequence[Record]], tuple[list[str], list[list[str]]]]] = {
    "step": step,
    "variance": variance,
    "convergence": convergence,
}
