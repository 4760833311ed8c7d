"""Results of one or several evaluations as one table (text, Markdown, CSV), a picture, and model-index entries.

Every form says how many clips and captions there were, and how the checkpoint was chosen.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from supclap.evaluation.inputs import CHOSEN_ON
from supclap.evaluation.intervals import format_interval
from supclap.files import write_whole


if TYPE_CHECKING:
    from huggingface_hub import EvalResult

NOTE = "Intervals: 95 % bootstrap over clips. Ties count as errors. audio to text: recall by the best of a clip's captions."
# What the table of models shows of a retrieval.
COMPARED = {
    "text_to_audio/recall@1": "text to audio R@1",
    "text_to_audio/recall@10": "text to audio R@10",
    "audio_to_text/recall@1": "audio to text R@1",
    "audio_to_text/recall@10": "audio to text R@10",
}
# Class names are drawn beside a confusion picture up to so many.
_MOST_NAMES = 60
_KINDS = {
    "retrieval": ("audio-text-retrieval", "Audio-text retrieval"),
    "zero_shot": ("zero-shot-audio-classification", "Zero-shot audio classification"),
    "mteb": ("mteb", "MTEB"),
}


def task_title(entry: Mapping[str, Any]) -> str:
    """`audiocaps (fra_Latn)`."""
    return entry["task"] if entry["language"] is None else f"{entry['task']} ({entry['language']})"


def size_text(entry: Mapping[str, Any]) -> str:
    """`957 of 975 clips, 4785 captions`: what was scored, beside the official number of clips where it differs."""
    if "n_clips" not in entry:
        return ""
    official = entry.get("expected_clips", entry["n_clips"])
    parts = [f"{entry['n_clips']}" + (f" of {official}" if official != entry["n_clips"] else "") + " clips"]
    if entry.get("left_out"):
        parts[0] += f" ({len(entry['left_out'])} left out)"
    if "n_texts" in entry:
        parts.append(f"{entry['n_texts']} captions")
    if "n_labels" in entry:
        expected = entry["record"].get("expected_labels", entry["n_labels"])
        parts.append(
            f"{entry['n_labels']}" + (f" of {expected}" if expected != entry["n_labels"] else "") + " classes"
        )
    return ", ".join(parts)


def is_share(metric: str) -> bool:
    """Whether a metric is a share, shown in percent; the others are median ranks."""
    return not metric.endswith("median_rank")


def _number(metric: str, value: float) -> str:
    return f"{100 * value:.2f}" if is_share(metric) else f"rank {value:g}"


def _grid(summaries: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of the table: one line a metric, one column a model, or value, interval and n of a single one."""
    single = len(summaries) == 1
    header = ["task", "on", "metric"]
    header += ["%", "95 % interval", "n"] if single else [summary["checkpoint"] for summary in summaries]
    lines: dict[tuple[str, str], list[str]] = {}
    sizes: dict[tuple[str, str], set[str]] = {}
    width = len(header) - 3
    for column, summary in enumerate(summaries):
        for entry in summary["results"]:
            title = task_title(entry)
            if entry["status"] != "done":
                cells = lines.setdefault((title, ""), [""] * width)
                cells[0 if single else column] = (
                    f"{entry['status']}: {' '.join(entry['reason'].split())}" if single else entry["status"]
                )
                continue
            for metric, value in entry["metrics"].items():
                key = (title, metric)
                cells = lines.setdefault(key, [""] * width)
                sizes.setdefault(key, set()).add(size_text(entry))
                number = _number(metric, value["value"])
                if single:
                    cells[:] = [number, format_interval(value), str(value["n"])]
                else:
                    cells[column] = number if value["low"] is None else f"{number} {format_interval(value)}"
    rows = [[*key[:1], " / ".join(sorted(sizes.get(key, ()))), key[1], *cells] for key, cells in lines.items()]
    return header, rows


def _heads(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"{s['checkpoint']}, suite {s['suite']}: {CHOSEN_ON[s['chosen_on']]}" for s in summaries]


def text_table(summaries: Sequence[Mapping[str, Any]]) -> str:
    """The table for a terminal; task and size are written once for all metrics of a task."""
    header, rows = _grid(summaries)
    shown, previous = [], None
    for row in rows:
        shown.append(["", "", *row[2:]] if row[:2] == previous else row)
        previous = row[:2]
    fits = [row for row in [header, *shown] if not row[3].startswith(("not run", "failed"))]
    widths = [max(len(row[column]) for row in fits) for column in range(len(header))]
    widths[0] = max(len(row[0]) for row in [header, *shown])
    lines = [
        "  ".join(
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [header, *shown]
    ]
    return "\n".join([*_heads(summaries), NOTE, *lines])


def markdown_table(summaries: Sequence[Mapping[str, Any]]) -> str:
    """The table in Markdown."""
    header, rows = _grid(summaries)
    lines = [header, ["---"] * 3 + ["---:"] * (len(header) - 3), *rows]
    return "\n".join([*(f"{head}  " for head in _heads(summaries)), NOTE, "", *map(_markdown_line, lines)]) + "\n"


def models_table(summaries: Sequence[Mapping[str, Any]]) -> str:
    """The comparison in Markdown: one row a model, and of each task the metrics that papers compare, with intervals."""
    columns: dict[tuple[str, str], set[str]] = {}
    cells: list[dict[tuple[str, str], str]] = []
    for summary in summaries:
        own = {}
        for entry in summary["results"]:
            for metric, value in entry.get("metrics", {}).items():
                if entry["kind"] == "retrieval" and metric not in COMPARED:
                    continue
                key = (task_title(entry), metric)
                columns.setdefault(key, set()).add(size_text(entry))
                own[key] = f"{_number(metric, value['value'])} {format_interval(value)}".rstrip()
        cells.append(own)
    header = ["model", "checkpoint"]
    header += [
        f"{task}, {COMPARED.get(metric, metric)} ({' / '.join(sorted(sizes))})" if any(sizes) else f"{task}, {metric}"
        for (task, metric), sizes in columns.items()
    ]
    rows = [
        [summary["checkpoint"], CHOSEN_ON[summary["chosen_on"]], *(own.get(key, "not run") for key in columns)]
        for summary, own in zip(summaries, cells, strict=True)
    ]
    lines = [header, ["---"] * 2 + ["---:"] * len(columns), *rows]
    return "\n".join([f"Suite {summaries[0]['suite']}, in %. {NOTE}", "", *map(_markdown_line, lines)]) + "\n"


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def csv_table(summaries: Sequence[Mapping[str, Any]]) -> str:
    """One line for each model, task and metric; values are fractions, or ranks."""
    stream = io.StringIO()
    fields = ["checkpoint", "fingerprint", "suite", "chosen_on", "task", "kind", "language", "status", "reason"]
    fields += ["n_clips", "n_texts", "metric", "value", "low", "high", "n"]
    writer = csv.DictWriter(stream, fields, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for summary in summaries:
        for entry in summary["results"]:
            for metric, value in entry.get("metrics", {"": {}}).items():
                writer.writerow({**summary, **entry, "metric": metric, **value})
    return stream.getvalue()


def write_tables(summaries: Sequence[Mapping[str, Any]], folder: str | Path) -> list[Path]:
    """Writes `results.md`, `results.csv`, `results.png`, `models.md` and, of a single model, `model-index.yaml`.

    Returns:
        The files.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"results.md": markdown_table(summaries), "results.csv": csv_table(summaries)}
    texts["models.md"] = models_table(summaries)
    done = any(entry["status"] == "done" for summary in summaries for entry in summary["results"])
    if len(summaries) == 1 and done:
        texts["model-index.yaml"] = model_index_yaml(summaries[0])
    for name, text in texts.items():
        write_whole(folder / name, text)
    files = [folder / name for name in texts]
    if done:
        plot_results(summaries, folder / "results.png")
        files.append(folder / "results.png")
    return files


# ---- model-index ----


def model_index(summary: Mapping[str, Any]) -> list["EvalResult"]:
    """The results of one model as entries for the `model-index` of its card.

    Each names data, split, N, interval, protocol or templates, and how the checkpoint was chosen.
    """
    entries = []
    for entry in summary["results"]:
        if entry["status"] != "done":
            continue
        record = entry.get("record", {})
        shared = {"fingerprint": summary["fingerprint"]}
        shared |= {key: record[key] for key in ("templates", "language") if record.get(key)}
        entries += [
            eval_result(
                entry["kind"],
                metric,
                value,
                summary["chosen_on"],
                shared,
                dataset_type=str(entry["data"]),
                dataset_name=f"{task_title(entry)}, {size_text(entry)}",
                dataset_config=entry["language"],
                dataset_split=entry["split"],
            )
            for metric, value in entry["metrics"].items()
        ]
    return entries


def eval_result(
    kind: str,
    metric: str,
    value: Mapping[str, Any],
    chosen_on: str | None,
    metric_args: Mapping[str, Any] | None = None,
    **dataset: Any,
) -> "EvalResult":
    """One entry of a `model-index`, shares in percent as leaderboards show them.

    Args:
        kind: `retrieval`, `zero_shot` or `mteb`.
        metric: Its name.
        value: `value`, `low`, `high` and `n`; shares from 0 to 1.
        chosen_on: How the checkpoint was chosen; see `CHOSEN_ON`.
        metric_args: More that the figure depends on.
        dataset: The `dataset_*` fields of the entry.
    """
    from huggingface_hub import EvalResult

    task_type, task_name = _KINDS[kind]
    scale = 100 if is_share(metric) else 1
    ends = [] if value["low"] is None else [round(scale * value[end], 4) for end in ("low", "high")]
    name = metric.replace("_", " ").replace("/", ", ")
    return EvalResult(
        task_type=task_type,
        task_name=task_name,
        metric_type=metric,
        metric_name=name + (" (checkpoint chosen on test)" if chosen_on == "test" else ""),
        metric_value=round(scale * value["value"], 4),
        metric_args={
            "chosen_on": chosen_on or "not recorded",
            **(metric_args or {}),
            "unit": "%" if is_share(metric) else "rank",
            **({"interval_95": ends} if ends else {}),
            "n": value["n"],
        },
        **dataset,
    )


def model_index_yaml(summary: Mapping[str, Any]) -> str:
    """[`model_index`] as the YAML that goes between the `---` lines of a model card."""
    from huggingface_hub import ModelCardData

    return (
        ModelCardData(model_name=Path(summary["checkpoint"]).name, eval_results=model_index(summary)).to_yaml() + "\n"
    )


# ---- Pictures ----


def plot_results(summaries: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """Draws every metric of every task with its interval, one colour a model."""
    from matplotlib.figure import Figure

    names = list(
        dict.fromkeys(
            (task_title(entry), metric)
            for summary in summaries
            for entry in summary["results"]
            if entry["status"] == "done"
            for metric in filter(is_share, entry["metrics"])
        )
    )
    position = {name: len(names) - row for row, name in enumerate(names)}
    figure = Figure(figsize=(9, 1.5 + 0.24 * len(names) * max(1, len(summaries) / 2)), layout="constrained")
    axis = figure.subplots()
    for number, summary in enumerate(summaries):
        offset = 0.7 * ((number + 0.5) / len(summaries) - 0.5)
        points = [
            (position[task_title(entry), metric] - offset, value)
            for entry in summary["results"]
            if entry["status"] == "done"
            for metric, value in entry["metrics"].items()
            if is_share(metric)
        ]
        centre = np.array([100 * value["value"] for _, value in points])
        ends = [
            (value["value"], value["value"]) if value["low"] is None else (value["low"], value["high"])
            for _, value in points
        ]
        # a percentile interval need not hold its value
        spread = np.abs(100 * np.array(ends).reshape(-1, 2).T - centre)
        axis.errorbar(centre, [row for row, _ in points], xerr=spread, fmt="o", capsize=2, label=summary["checkpoint"])
    axis.set_yticks(
        [position[name] for name in names], [f"{task}: {metric}" for task, metric in names], fontsize="small"
    )
    axis.set(xlim=(0, 100), xlabel="%", title="\n".join(_heads(summaries)))
    axis.title.set_fontsize("small")
    axis.grid(axis="x", alpha=0.3)
    if len(summaries) > 1:
        axis.legend(fontsize="small")
    figure.savefig(path, dpi=100)


def plot_confusion(confusion: np.ndarray, labels: Sequence[str], path: str | Path) -> None:
    """Draws a confusion matrix `(C, C)`, each true class (row) as shares of its clips."""
    from matplotlib.figure import Figure

    totals = confusion.sum(axis=1, keepdims=True)
    shares = np.divide(confusion, totals, out=np.zeros(confusion.shape), where=totals > 0)
    side = 4 + 0.12 * min(len(labels), _MOST_NAMES)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(shares, vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
    if len(labels) <= _MOST_NAMES:
        axis.set_xticks(range(len(labels)), labels, rotation=90, fontsize="x-small")
        axis.set_yticks(range(len(labels)), labels, fontsize="x-small")
    axis.set(xlabel="predicted", ylabel="true")
    figure.colorbar(image, label="share of the class's clips")
    figure.savefig(path, dpi=100)
