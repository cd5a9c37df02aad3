"""``actnn bench plots``: draw the committed records of benchmarks, each NAME.jsonl as NAME.svg and NAME.png.

A picture shows the records that have the settings of the newest one; of several of one contestant the newest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actnn.bench import accuracies, task_results
from actnn.bench.arguments import different, one_of, parser_of
from actnn.bench.drawing import EXACT_COLOUR, FORMATS, STYLES, plot, save
from actnn.console.extras import require
from actnn.errors import ConfigError
from actnn.measuring.records import Record, recorded
from actnn.workloads.task import CONTESTANTS, EXACT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GIB = 2**30
TITLES = {"resnet50": "ResNet-50", "resnet152": "ResNet-152", "fcn_hrnet_w48": "FCN-HRNet-W48"}
EXAMPLE = "actnn bench plots --results results --only speed,maxbatch"


def main(argv: Sequence[str]) -> int:
    """Draw what there are records of and print the files."""
    parser = parser_of("plots", __doc__, EXAMPLE)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the records")
    parser.add_argument("--only", type=different(one_of(tuple(PICTURES))), help=f"of {', '.join(PICTURES)}")
    arguments = parser.parse_args(argv)
    require("a picture", ["matplotlib"])
    drawn = 0
    for name in arguments.only or PICTURES:
        source = arguments.results / f"{name}.jsonl"
        if found := recorded(source):
            paths = [source.with_suffix(ending) for ending in FORMATS]
            PICTURES[name](found, paths)
            print(*paths)
            drawn += 1
        elif arguments.only:
            raise ConfigError(f"{source} holds no record: run the benchmark with --out {source} first.")
    if not drawn:
        raise ConfigError(
            f"--results {arguments.results} holds no record of {', '.join(PICTURES)}: run one of these benchmarks with "
            f"--out {arguments.results / 'NAME.jsonl'} first."
        )
    return 0


def newest(records: Sequence[Record], same: Sequence[str], key: Sequence[str]) -> dict[Any, Record]:
    """Return the newest record for each value of ``key`` among those that equal the last one in ``same``."""
    last = records[-1]
    alike = [record for record in records if all(record.get(name) == last.get(name) for name in same)]
    return {tuple(record[name] for name in key): record for record in alike}


def ordered(names: Sequence[str]) -> list[str]:
    """Return contestants in their usual order, each once."""
    return sorted(set(names), key=CONTESTANTS.index)


def limit_of(record: Record) -> str:
    """Return the memory limit of a record in words."""
    return f"{record['memory_limit'] / 1e9:.3g} GB of memory"


def title_of(record: Record) -> str:
    """Return the model of a record in words."""
    model: str = record["model"]
    return TITLES.get(model, model)


def convergence(records: Sequence[Record], paths: Sequence[Path]) -> None:
    """Draw accuracy by width."""
    groups = accuracies.by_settings(records)
    title = accuracies.described(records[-1])
    plot(accuracies.cells(groups[title]), title, *paths)


def speed(records: Sequence[Record], paths: Sequence[Path]) -> None:
    """Draw images a second by batch size; a line ends where the next batch does not fit."""
    found = newest(records, ("framework", "model", "size", "memory_limit"), ("contestant", "batch"))
    names = ordered([name for name, _ in found])
    batches = sorted({batch for _, batch in found})
    title = f"{title_of(records[-1])}, {records[-1]['size']} px, {limit_of(records[-1])}"

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for name in names:
            own = {batch: found[name, batch] for batch in batches if (name, batch) in found}
            fitting = {batch: record for batch, record in own.items() if record["fits"]}
            if fitting:
                draw_speed(axes, name, list(fitting), list(fitting.values()), len(fitting) < len(own))
        axes.set_xscale("log", base=2)
        axes.set_xticks(batches, list(map(str, batches)))
        axes.set_xticks([], minor=True)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("batch size (a line ends at the largest of these that fits)")
        axes.set_ylabel("images a second")
        axes.set_title(title, fontsize=10, loc="left")
        axes.grid(axis="y", alpha=0.3, linewidth=0.6)
        figure.legend(loc="outside right upper", frameon=False)

    save(draw, (7.2, 4.0), *paths)


def draw_speed(axes: Axes, name: str, batches: Sequence[int], found: Sequence[Record], ends: bool) -> None:
    """Draw the line of one contestant."""
    colour, marker = STYLES[name]
    heights = [record["images_per_second"] for record in found]
    # where lines lie upon each other, the legend still tells which of them end
    label = f"{name}, up to {batches[-1]}" if ends else name
    # what all are compared with must not hide under them
    line, above = ("--", 4) if name == EXACT else ("-", 3)
    axes.plot(
        batches, heights, line, color=colour, marker=marker, markersize=5, linewidth=1.8, label=label, zorder=above
    )


def memory(records: Sequence[Record], paths: Sequence[Path]) -> None:
    """Draw activations and total memory, a panel for each model, a group of bars for each batch."""
    from matplotlib.patches import Patch

    found = newest(records, ("framework",), ("model", "size", "batch", "contestant"))
    models = list(dict.fromkeys((model, size) for model, size, _, _ in found))

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(models), squeeze=False)[0]
        for axes, (model, size) in zip(panels, models, strict=True):
            shown = {key[2:]: record for key, record in found.items() if key[:2] == (model, size)}
            draw_memory(axes, shown)
            axes.set_title(f"{TITLES.get(model, model)}, {size} px", fontsize=10, loc="left")
        panels[0].set_ylabel("memory, GiB")
        names = ordered([name for *_, name in found])
        # patches of their own: the first bar of a contestant may be hatched
        handles = [Patch(color=STYLES[name][0]) for name in names]
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
        hatched = "; hatched: computed" if any(record["how"] == "computed" for record in found.values()) else ""
        words = f"whole bar, upper figure: all memory; full colour, bold figure: activations{hatched}"
        figure.suptitle(words, fontsize=9, x=0.01, ha="left", color=EXACT_COLOUR)

    save(draw, (3.9 * len(models) + 0.6, 4.2), *paths)


def draw_memory(axes: Axes, found: Mapping[tuple[int, str], Record]) -> None:
    """Draw one model: full colour for activations, pale for the rest of the total, hatched where computed.

    The bars of a batch stand side by side around its name, however many contestants it has a record of.
    """
    batches = sorted({batch for batch, _ in found})
    thick = 0.84 / len({name for _, name in found})
    for middle, batch in enumerate(batches):
        names = ordered([name for other, name in found if other == batch])
        for index, name in enumerate(names):
            place = middle + (index - (len(names) - 1) / 2) * thick
            draw_amounts(axes, place, thick * 0.92, name, found[batch, name])
    axes.set_xticks(range(len(batches)), [f"batch {batch}" for batch in batches])
    axes.set_xlim(-0.5, len(batches) - 0.5)
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.14)
    axes.grid(axis="y", alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)


def draw_amounts(axes: Axes, place: float, thick: float, name: str, record: Record) -> None:
    """Draw the bar of one contestant with both of its amounts above it, the whole above its activations."""
    colour = STYLES[name][0]
    activations, total = record["activation_bytes"] / GIB, record["total_bytes"] / GIB
    hatch = "//" if record["how"] == "computed" else None
    axes.bar(place, total, thick, color=colour, alpha=0.3, linewidth=0)
    axes.bar(place, activations, thick, color=colour, hatch=hatch, edgecolor="white", linewidth=0)
    words: dict[str, Any] = {"xy": (place, total), "textcoords": "offset points", "ha": "center", "fontsize": 8}
    axes.annotate(f"{activations:.2f}", xytext=(0, 2), color=colour, fontweight="bold", **words)
    axes.annotate(f"{total:.2f}", xytext=(0, 11), color=EXACT_COLOUR, **words)


def maxbatch(records: Sequence[Record], paths: Sequence[Path]) -> None:
    """Draw the largest batch of each contestant."""
    found = newest(records, ("framework", "model", "size", "memory_limit"), ("contestant",))
    title = f"largest batch, {title_of(records[-1])}, {records[-1]['size']} px, {limit_of(records[-1])}"

    def draw(figure: Figure) -> None:
        draw_largest(figure.add_subplot(), {name: record for (name,), record in found.items()}, title)

    save(draw, (6.4, 0.42 * len(found) + 1.0), *paths)


def maxmodel(records: Sequence[Record], paths: Sequence[Path]) -> None:
    """Draw the largest depth, width and resolution of each contestant, a panel each."""
    found = newest(records, ("framework", "batch", "memory_limit"), ("dimension", "contestant"))
    dimensions = list(dict.fromkeys(dimension for dimension, _ in found))

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(dimensions), squeeze=False, sharey=True)[0]
        for axes, dimension in zip(panels, dimensions, strict=True):
            shown = {name: record for (other, name), record in found.items() if other == dimension}
            draw_largest(axes, shown, dimension)
        figure.suptitle(
            f"largest ResNet, batch {records[-1]['batch']}, {limit_of(records[-1])}", fontsize=10, x=0.01, ha="left"
        )

    rows = max(sum(other == dimension for other, _ in found) for dimension in dimensions)
    save(draw, (2.7 * len(dimensions) + 0.6, 0.42 * rows + 1.2), *paths)


def draw_largest(axes: Axes, found: Mapping[str, Record], title: str) -> None:
    """Draw a bar for each contestant with its value and the ratio to exact training's."""
    names = ordered(list(found))
    values = [found[name]["largest"] for name in names]
    axes.barh(names, values, color=[STYLES[name][0] for name in names], height=0.66)
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        times = f"  {value / found[EXACT]['largest']:.1f}×" if EXACT in found and name != EXACT else ""
        axes.annotate(f"{value}{times}", (value, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
    if EXACT in found:
        axes.axvline(found[EXACT]["largest"], color=EXACT_COLOUR, linewidth=0.8, linestyle=":")
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.45 * max(values))
    axes.set_title(title, fontsize=10, loc="left")


PICTURES: dict[str, Callable[[Sequence[Record], Sequence[Path]], None]] = {
    "convergence": convergence,
    "speed": speed,
    "memory": memory,
    "maxbatch": maxbatch,
    "maxmodel": maxmodel,
    "tasks": task_results.picture,
}
