"""``actnn bench tables``: write the committed records of benchmarks as tables into a Markdown file.

A table stands between ``<!-- table:NAME -->`` and ``<!-- end -->`` and is made from ``results/NAME.jsonl``; of several
records of one contestant the newest counts.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from actnn.bench import accuracies, expectations, task_results
from actnn.bench import compile as compile_bench
from actnn.bench import kept as bench_kept
from actnn.bench import noise as bench_noise
from actnn.bench.accuracies import NOTHING
from actnn.bench.arguments import parser_of
from actnn.bench.variance import less_kept
from actnn.errors import ConfigError
from actnn.measuring.records import Record, recorded
from actnn.workloads.peers import PEERS
from actnn.workloads.task import CHECKPOINT, CONTESTANTS, EXACT, FLOOR, KEPT_HEAP, VARIANTS

Table = tuple[list[str], list[list[str]]]
EXAMPLE = "actnn bench tables --file README.md --results results"
# growth of memory below this is nothing but what the system rounds
LEAST_GROWTH = 2**20
# what allocates where nobody says otherwise
C_LIBRARY = "C library"
OTHER_WAYS = (CHECKPOINT, "**actnn swap**")
# variants that stand beside the model, not beside the contestant
ELSEWHERE = ("channels_last", "optimizer")
PLACE = re.compile(r"(<!-- table:(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main(argv: Sequence[str]) -> int:
    """Rewrite the tables of a file."""
    parser = parser_of("tables", __doc__, EXAMPLE)
    parser.add_argument("--file", type=Path, default=Path("README.md"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a table is out of date")
    arguments = parser.parse_args(argv)
    try:
        text = arguments.file.read_text()
    except OSError as problem:
        raise ConfigError(f"--file {arguments.file} cannot be read: {problem}.") from problem
    new = PLACE.sub(lambda place: f"{place[1]}{table(place[2], arguments.results)}\n{place[3]}", text)
    if arguments.check:
        return int(new != text)
    arguments.file.write_text(new)
    return 0


def table(name: str, results: Path) -> str:
    """Return one table as Markdown, with the machine and the versions below it."""
    if name not in TABLES:
        raise ConfigError(f"there is no table {name!r}: expected one of {', '.join(TABLES)}.")
    source = results / f"{SOURCES.get(name, name)}.jsonl"
    if not source.exists():
        raise ConfigError(f"{source} does not exist: run the benchmark with --out {source} first.")
    records = CHOSEN.get(name, list)(recorded(source))
    if not records:
        raise ConfigError(f"{source} holds no record.")
    heading, rows = TABLES[name](records)
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(["| " + " | ".join(line) + " |" for line in lines] + ["", made_on(records)])


def step(records: Sequence[Record]) -> Table:
    """Return the table of ``bench step``: one row a model and contestant."""
    newest: Mapping[tuple[Any, ...], Record] = {
        (in_order(record), record["batch"], record["size"], trainer(record)): record for record in records
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
    for (model, batch, size, name), record in side_by_side(newest):
        rows.append(
            [
                f"{model}, {batch}, {size}",
                name,
                f"{record['step_default']['seconds']:.2f} s",
                figure(record, "time_ratio_default", ".2f"),
                megabytes(record["kept_bytes"]),
                figure(record, "kept_ratio", ".1f", "×"),
                grown(record),
                f"{megabytes(record['peak_bytes'])}, {figure(record, 'peak_ratio', '.1f', '×')}",
            ]
        )
    return heading, rows


def with_other_ways(records: Sequence[Record]) -> list[Record]:
    """Return the newest records of ``bench step`` of models that were trained by another way to save memory too."""
    newest = {(in_order(record), record["batch"], record["size"], trainer(record)): record for record in records}
    models = {key[:3] for key in newest if key[3] in OTHER_WAYS}
    return [record for key, record in newest.items() if key[:3] in models]


def beside(records: Sequence[Record]) -> Table:
    """Return some columns of the table of ``bench step``."""
    heading, rows = step(records)
    columns = [heading.index(name) for name in ("model, batch, size", "training", "time", "kept", "peak")]
    return [heading[place] for place in columns], [[row[place] for place in columns] for row in rows]


def overhead(records: Sequence[Record]) -> Table:
    """Return the table of ``bench overhead``: one row a model and contestant, in milliseconds of processor time."""
    newest = {(model_of(record), record["batch"], record["size"], trainer(record)): record for record in records}
    heading = ["model, batch, size", "leaf layers", "training", "step", "quartiles", "of exact", "added a layer"]
    return heading, [
        [
            f"{model}, {batch}, {size}",
            str(record["leaf_layers"]),
            name,
            f"{record['milliseconds']:.1f} ms",
            f"{1e3 * record['step']['first_quartile']:.1f} to {1e3 * record['step']['third_quartile']:.1f}",
            f"{record['time_ratio']:.2f}",
            NOTHING if name == EXACT else f"{record['added_milliseconds_per_layer']:.3f} ms",
        ]
        for (model, batch, size, name), record in side_by_side(newest)
    ]


def compiled(records: Sequence[Record]) -> Table:
    """Return the table of ``bench compile``: one row a model and contestant."""
    newest = {(record["model"], record["batch"], record["size"], record["contestant"]): record for record in records}
    return compile_bench.HEADING, [compile_bench.row(record) for record in newest.values()]


def figure(record: Record, name: str, form: str, unit: str = "") -> str:
    """Return a figure of a record as words, nothing where what it compares with took no part in it."""
    return NOTHING if record.get(name) is None else f"{record[name]:{form}}{unit}"


def megabytes(count: int) -> str:
    """Return a number of bytes as words."""
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{count / 1e6:.1f} MB"


def grown(record: Record) -> str:
    """Return how many times less memory grows by in a forward; where it hardly grows, a quotient would mean nothing."""
    if record.get("forward_bytes", LEAST_GROWTH) < LEAST_GROWTH:
        return "hardly"
    return figure(record, "forward_ratio", ".1f", "×")


def in_order(record: Record) -> str:
    """Return the model of a record, with its memory order where that is not the usual one, also for exact training."""
    return f"{model_of(record)} in channels_last" if record.get("channels_last") else model_of(record)


def trainer(record: Record) -> str:
    """Return how the contestant of a record trains."""
    name: str = record["contestant"]
    if name == KEPT_HEAP:
        return "exact, heap kept"
    if name in (EXACT, CHECKPOINT, FLOOR, *PEERS):
        return name
    # records of an earlier form name the level apart
    words: list[str] = [record.get("level", name), *([] if record["bits"] is None else [f"{record['bits']:g} bits"])]
    variants = (variant for variant in VARIANTS if variant in record and variant not in ELSEWHERE)
    words += [f"{variant}={record[variant]}" for variant in variants]
    return f"**actnn {', '.join(words)}**"


def variance(records: Sequence[Record]) -> Table:
    """Return the table of ``bench variance``: one row a model and scheme."""
    newest = {
        tuple(record[name] for name in ("model", "data", "batch", "scheme", "bits")): record for record in records
    }
    heading = ["model, images, batch", "scheme", "bits", "kept", "variance", "of L2's", "predicted", "rank correlation"]
    heading += ["squared bias", "of sampling variance", "noisiest parameter, of its own"]
    rows = [
        [
            f"{model}, {data}, {batch}",
            scheme,
            f"{bits:g}",
            f"{less_kept(record):.1f}×",
            f"{record['variance']:.4f}",
            figure(record, "ratio_to_l2", ".2f"),
            figure(record, "predicted", ".4f"),
            figure(record, "rank_correlation", ".2f"),
            f"{record['bias']:.1e} ± {record['bias_error']:.1e}" if record.get("bias_error") else "",
            figure(record, "of_sampling", ".4f"),
            f"{record['noisiest_of_sampling'][0][1]:.3f}" if record.get("noisiest_of_sampling") else "",
        ]
        for (model, data, batch, scheme, bits), record in newest.items()
    ]
    return heading, rows


def convergence(records: Sequence[Record]) -> Table:
    """Return the table of ``bench convergence``: one row a level, for each group of equal settings."""
    columns = accuracies.widths(records)
    heading = ["training", "level", *(f"{bits:g} bits" for bits in columns)]
    return heading, [
        [words, *row]
        for words, alike in accuracies.by_settings(records).items()
        for row in accuracies.rows(accuracies.cells(alike), columns)
    ]


def losses(records: Sequence[Record]) -> Table:
    """Return the table of ``bench losses``: one row a model and contestant, over seeds.

    Where somebody trained exactly with sums in another order, differences from exact training are compared with theirs.
    """
    found: dict[tuple[str, str], dict[int, Record]] = {}
    for record in records:
        learnt = f", {record['data']}" if "data" in record else ""
        rate = f"{record['optimizer']}, rate" if "optimizer" in record else "rate"
        words = f"{model_of(record)}, {record['batch']}, {record['size']}{learnt}, {rate} {record['rate']:g}"
        found.setdefault((words, trainer(record)), {})[record["seed"]] = record
    heading = ["model, batch, size", "training", "seeds", "first steps", "last steps", "above exact"]
    floors = any(name == FLOOR for _, name in found)
    # what rounding does is little
    digits = 5 if floors else 3
    return [*heading, *(["beside the floor"] if floors else [])], [
        [
            words,
            name,
            str(len(seeds)),
            *(f"{statistics.fmean(record[part] for record in seeds.values()):.3f}" for part in ("first", "last")),
            NOTHING if name == EXACT else above(seeds, found.get((words, EXACT), {}), digits),
            *([beside_floor(name, words, found)] if floors else []),
        ]
        for (words, name), seeds in found.items()
    ]


def above(seeds: Mapping[int, Record], exact: Mapping[int, Record], digits: int) -> str:
    """Return by how much losses end above those of exact training from the same seeds, with the standard error."""
    found = difference(seeds, exact)
    return NOTHING if found is None else f"{found[0]:+.{digits}f} ± {found[1]:.{digits}f}"


def difference(seeds: Mapping[int, Record], exact: Mapping[int, Record]) -> tuple[float, float] | None:
    """Return by how much losses end above others from the same seeds, and its standard error; None below two seeds."""
    differences = [record["last"] - exact[seed]["last"] for seed, record in seeds.items() if seed in exact]
    if len(differences) < 2:
        return None
    return statistics.fmean(differences), statistics.stdev(differences) / len(differences) ** 0.5


def beside_floor(name: str, words: str, found: Mapping[tuple[str, str], Mapping[int, Record]]) -> str:
    """Tell whether losses end as far above exact training as those of exact training with sums in another order do.

    Both have a standard error: what lies within two of both together is within the floor.
    """
    exact = found.get((words, EXACT), {})
    own, floor = difference(found[words, name], exact), difference(found.get((words, FLOOR), {}), exact)
    if name in (EXACT, FLOOR) or own is None or floor is None:
        return NOTHING
    apart, error = own[0] - floor[0], math.hypot(own[1], floor[1])
    return f"{apart:+.5f} ± {error:.5f}, {'within' if abs(apart) <= 2 * error else 'not within'}"


def memory(records: Sequence[Record]) -> Table:
    """Return the table of ``bench memory``: one row a model, batch and contestant, in GiB as the paper counts."""
    newest = {(model_of(record), record["size"], record["batch"], trainer(record)): record for record in records}
    exact = {key[:3]: record for key, record in newest.items() if key[3] == EXACT}
    heading = ["model, image", "batch", "training", "activations", "", "total", "", ""]
    rows = []
    for (model, size, batch, name), record in newest.items():
        figures: list[str] = []
        for figure in ("activation_bytes", "total_bytes"):
            other = exact.get((model, size, batch), {}).get(figure)
            less = NOTHING if other is None else f"{other / record[figure]:.1f}×"
            figures += [f"{record[figure] / 2**30:.2f} GiB", less]
        rows.append([f"{model}, {size}", str(batch), name, *figures, record["how"]])
    return heading, rows


def kept(records: Sequence[Record]) -> Table:
    """Return the table of ``bench kept``: one row a model and level, in MB."""
    newest = {(record["model"], record["batch"], record["size"], trainer(record)): record for record in records}
    return bench_kept.HEADING, bench_kept.rows(list(newest.values()))


def speed(records: Sequence[Record]) -> Table:
    """Return the table of ``bench speed``: one row a contestant, images a second by batch."""
    newest = {(*place(record), trainer(record), record["batch"]): record for record in records}
    batches = sorted({record["batch"] for record in records})
    heading = ["model, image, memory", "training", *(f"batch {batch}" for batch in batches)]
    rows = []
    for words, name in dict.fromkeys(key[:2] for key in newest):
        found = [newest.get((words, name, batch)) for batch in batches]
        rows.append([words, name, *map(speed_cell, found)])
    return heading, rows


def speed_cell(record: Record | None) -> str:
    """Return the speed of one contestant at one batch size."""
    if record is None:
        return NOTHING
    return f"{record['images_per_second']:.2f}" if record["fits"] else "does not fit"


def maxbatch(records: Sequence[Record]) -> Table:
    """Return the table of ``bench maxbatch``: one row a contestant."""
    newest = {(*place(record), trainer(record)): record for record in records}
    exact = {words: record["largest"] for (words, name), record in newest.items() if name == EXACT}
    heading = ["model, image, memory", "training", "largest batch", "of exact"]
    return heading, [
        [words, name, str(record["largest"]), times(record["largest"], exact.get(words))]
        for (words, name), record in sorted(newest.items(), key=in_usual_order)
    ]


def expected(records: Sequence[Record]) -> Table:
    """Return what the largest batches of ``bench maxbatch`` make of training on many devices."""
    newest = {(*place(record), trainer(record)): record for record in records}
    return expectations.HEADING, [
        [words, name, *expectations.cells(record)]
        for (words, name), record in sorted(newest.items(), key=in_usual_order)
    ]


def scaling(records: Sequence[Record]) -> Table:
    """Return the table of ``bench scaling``: one row a contestant and count of processes."""
    newest = {
        (f"{model_of(record)}, {record['batch']}, {record['size']}", trainer(record), record["processes"]): record
        for record in records
    }
    heading = ["model, batch of all, size", "training", "processes", "step", "images a second"]
    heading += ["kept by each", "sent by each in a step"]
    return heading, [
        [
            *(words, name, str(count), f"{record['step']['seconds']:.2f} s", f"{record['images_per_second']:.2f}"),
            *(megabytes(record["kept_bytes"]), megabytes(record["sent_bytes"])),
        ]
        for (words, name, count), record in newest.items()
    ]


def side_by_side(newest: Mapping[tuple[Any, ...], Record]) -> list[tuple[tuple[Any, ...], Record]]:
    """Return records with all contestants of a model together, whenever they were measured."""
    models = list(dict.fromkeys(key[:3] for key in newest))
    return sorted(newest.items(), key=lambda entry: (models.index(entry[0][:3]), in_usual_order(entry)))


def in_usual_order(entry: tuple[Any, Record]) -> int:
    """Return the place of a record's contestant among all."""
    record = entry[1]
    # records of an earlier form name the level apart
    return CONTESTANTS.index(record["contestant"] if record["contestant"] in CONTESTANTS else record["level"])


def maxmodel(records: Sequence[Record]) -> Table:
    """Return the table of ``bench maxmodel``: one row a contestant, a column a dimension."""
    newest = {
        (f"batch {record['batch']}, {limit(record)}", trainer(record), record["dimension"]): record["largest"]
        for record in records
    }
    dimensions = list(dict.fromkeys(key[2] for key in newest))
    rows = []
    for words, name in dict.fromkeys(key[:2] for key in newest):
        cells = []
        for dimension in dimensions:
            largest, exact = newest.get((words, name, dimension)), newest.get((words, EXACT, dimension))
            cells.append(NOTHING if largest is None else f"{largest} ({times(largest, exact)})")
        rows.append([words, name, *cells])
    return ["batch, memory", "training", *dimensions], rows


def fragmentation(records: Sequence[Record]) -> Table:
    """Return the table of ``bench fragmentation``: one row a contestant."""
    newest = {
        (model_of(record), record["batch"], record["size"], trainer(record), record.get("allocator", C_LIBRARY)): record
        for record in records
    }
    heading = ["model, batch, size up to", "training", "allocator"]
    heading += ["most alive", "most resident", "resident ÷ alive", "last half", "page faults"]
    return heading, [
        [
            f"{model}, {batch}, {size}",
            name,
            allocator,
            f"{max(record['live_bytes']) / 1e6:.0f} MB",
            f"{max(record['resident_bytes']) / 1e6:.0f} MB",
            f"{record['ratio']:.2f}",
            f"{record['ratio_of_last_half']:.2f}",
            f"{record['faults']:,}" if "faults" in record else NOTHING,
        ]
        for (model, batch, size, name, allocator), record in newest.items()
    ]


def place(record: Record) -> tuple[str]:
    """Return the model, image size and memory limit of a record as words."""
    return (f"{model_of(record)}, {record['size']}, {limit(record)}",)


def model_of(record: Record) -> str:
    """Return the model of a record, with its framework unless that is torch."""
    framework = record.get("framework", "torch")
    return f"{record['model']}" if framework == "torch" else f"{record['model']} ({framework})"


def limit(record: Record) -> str:
    """Return the memory limit of a record as words."""
    return f"{record['memory_limit'] / 1e9:.3g} GB"


def times(value: float, exact: float | None) -> str:
    """Return the ratio of a value to that of exact training as words."""
    return NOTHING if exact is None else f"{value / exact:.1f}×"


def made_on(records: Sequence[Record]) -> str:
    """Return the machines and the versions that records were made with, one sentence each."""
    commits: dict[str, dict[str, None]] = {}
    for record in records:
        machine = record["machine"]
        commits.setdefault(described(machine), {})[f"{machine['commit']}, {machine['date']}"] = None
    return "\n\n".join(f"{words}; commit {' and '.join(found)}." for words, found in commits.items())


def described(machine: Record) -> str:
    """Return a machine and its versions as words."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB; "
        f"Python {machine['python']}, {versions}"
    )


# tables that are made from records of another name, and from some of them
SOURCES = {"beside": "step", "expected": "maxbatch"}
CHOSEN: dict[str, Callable[[Sequence[Record]], list[Record]]] = {
    "beside": with_other_ways,
    "expected": expectations.known,
}
TABLES: dict[str, Callable[[Sequence[Record]], Table]] = {
    "compile": compiled,
    "step": step,
    "beside": beside,
    "scaling": scaling,
    "expected": expected,
    "overhead": overhead,
    "memory": memory,
    "kept": kept,
    "speed": speed,
    "maxbatch": maxbatch,
    "maxmodel": maxmodel,
    "fragmentation": fragmentation,
    "variance": variance,
    "noise": bench_noise.table,
    "convergence": convergence,
    "losses": losses,
    "tasks": task_results.table,
}
