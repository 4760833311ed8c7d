"""Tables: rows as text or Markdown, and the results of evaluations as tables, files and entries of a `model-index`.

A summary is what `results.json` holds, see [`~supclap.evaluation.runner.evaluate_suite`]. Every form of it says how many
clips and captions there were, and how the checkpoint was chosen.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supclap.evaluation.results import CHOSEN_ON
from supclap.evaluation.retrieval import DEFAULT_PROTOCOL, PROTOCOLS
from supclap.files import write_whole
from supclap.plots import plot_intervals


if TYPE_CHECKING:
    from huggingface_hub import EvalResult

NOTE = (
    "Intervals: 95 % bootstrap over clips. Ties count as errors. Recall by the best of the right answers. Retrieval by the "
    "protocol text: a text that several clips have is one item, right for each of them; (index) marks the protocol in which "
    "each caption belongs to one clip only."
)
# The metrics of a retrieval that the table of models shows.
COMPARED = {
    "text_to_audio/recall@1": "text to audio R@1",
    "text_to_audio/recall@10": "text to audio R@10",
    "audio_to_text/recall@1": "audio to text R@1",
    "audio_to_text/recall@10": "audio to text R@10",
}
_KINDS = {
    "retrieval": ("audio-text-retrieval", "Audio-text retrieval"),
    "zero_shot": ("zero-shot-audio-classification", "Zero-shot audio classification"),
    "mteb": ("mteb", "MTEB"),
}
# What an entry of a `model-index` says of the record and of the data of its task.
_DEPENDS_ON = ("templates", "language", "languages")
_OF_DATA = ("n_clips", "n_texts", "n_different_texts", "n_shared_captions", "n_labels", "pool_size", "options")


# ---- Rows as text ----


def text_rows(rows: Sequence[Sequence[str]], n_left: int) -> str:
    """Rows of cells as lines with aligned columns; the first `n_left` columns are aligned to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if column < n_left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def markdown_rows(rows: Sequence[Sequence[str]], n_left: int) -> str:
    """Rows of cells, of which the first is the header, as a table in Markdown; alignment as in [`text_rows`]."""
    header, *body = rows
    rule = ["---" if column < n_left else "---:" for column in range(len(header))]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (header, rule, *body)]
    return "\n".join(lines)


# ---- Parts of a summary as text ----


def task_title(entry: Mapping[str, Any]) -> str:
    """`audiocaps (fra_Latn)`."""
    return entry["task"] if entry["language"] is None else f"{entry['task']} ({entry['language']})"


def size_text(entry: Mapping[str, Any]) -> str:
    """`957 of 975 clips, 4785 captions`: what was scored, and the official number of clips where it is another."""
    if "n_clips" not in entry:
        return ""
    clips = _of(entry["n_clips"], entry.get("expected_clips")) + " clips"
    if entry.get("left_out"):
        clips += f" ({len(entry['left_out'])} left out)"
    parts = [clips]
    if entry.get("pool_size"):
        parts.append(f"in pools of {entry['pool_size']}")
    if "n_texts" in entry:
        different = entry.get("n_different_texts", entry["n_texts"])
        parts.append(
            f"{entry['n_texts']} captions" + (f" ({different} different)" if different < entry["n_texts"] else "")
        )
    if "n_labels" in entry:
        parts.append(_of(entry["n_labels"], entry["record"].get("expected_labels")) + " classes")
    return ", ".join(parts)


def _of(found: int, expected: int | None) -> str:
    return f"{found}" if expected in (None, found) else f"{found} of {expected}"


def all_metrics(entry: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """The name, the protocol and the value of every metric of an entry, those of its own protocol first.

    The protocol is empty where the entry is no retrieval, or of a version that recorded none.
    """
    own = entry.get("record", {}).get("protocol", "")
    yield from ((metric, own, value) for metric, value in entry.get("metrics", {}).items())
    for protocol in PROTOCOLS:
        yield from ((metric, protocol, value) for metric, value in entry.get(f"metrics_{protocol}", {}).items())


def protocol_title(metric: str, protocol: str) -> str:
    """The name of a metric, which says its protocol where that is not the default."""
    return f"{metric} ({protocol})" if protocol not in ("", DEFAULT_PROTOCOL) else metric


def is_share(metric: str) -> bool:
    """Whether a metric is a share, which is shown in percent; the others are median ranks."""
    return not metric.endswith("median_rank")


def value_text(metric: str, value: Mapping[str, Any]) -> str:
    """`44.16`, in percent, or `rank 2`."""
    return f"{100 * value['value']:.2f}" if is_share(metric) else f"rank {value['value']:g}"


def interval_text(value: Mapping[str, Any]) -> str:
    """`[40.00, 50.00]`, in percent, or a dash where there is no interval."""
    return "-" if value["low"] is None else f"[{100 * value['low']:.2f}, {100 * value['high']:.2f}]"


def _heads(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"{s['checkpoint']}, suite {s['suite']}: {CHOSEN_ON[s['chosen_on']]}" for s in summaries]


# ---- Tables of summaries ----


def format_table(metrics: Mapping[str, Mapping[str, float | int | None]]) -> str:
    """The metrics of one task as text, one on each line; see [`~supclap.evaluation.metrics_with_intervals`]."""
    lines = [(name, value_text(name, m), interval_text(m), str(m["n"])) for name, m in metrics.items()]
    return text_rows([("metric", "%", "interval", "n"), *lines], n_left=1)


def _grid(summaries: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """The header and the lines of the table, one line for each metric of a task.

    Of several models each has a column. Of a single one the columns are the value, the interval and n.
    """
    single = len(summaries) == 1
    header = ["task", "on", "metric"]
    header += ["%", "95 % interval", "n"] if single else [summary["checkpoint"] for summary in summaries]
    lines: dict[tuple[str, str], list[str]] = {}
    sizes: dict[tuple[str, str], set[str]] = {}
    for column, summary in enumerate(summaries):
        for entry in summary["results"]:
            for metric, protocol, value in list(all_metrics(entry)) or [("", "", None)]:
                key = (task_title(entry), protocol_title(metric, protocol))
                cells = lines.setdefault(key, [""] * (len(header) - 3))
                sizes.setdefault(key, set()).add(size_text(entry))
                if value is None:  # not run, or failed
                    reason = f": {' '.join(entry['reason'].split())}" if single else ""
                    cells[0 if single else column] = entry["status"] + reason
                elif single:
                    cells[:] = [value_text(metric, value), interval_text(value), str(value["n"])]
                else:
                    cells[column] = f"{value_text(metric, value)} {interval_text(value)}".removesuffix(" -")
    rows = [
        [task, " / ".join(sorted(filter(None, sizes[task, metric]))), metric, *cells]
        for (task, metric), cells in lines.items()
    ]
    return header, rows


def text_table(summaries: Sequence[Mapping[str, Any]]) -> str:
    """The table for a terminal; task and size are written once for all metrics of a task."""
    header, rows = _grid(summaries)
    # Of a single model, a row without a metric has a reason, which may be long and would widen a column for all lines.
    scored = [row for row in rows if row[2] or len(summaries) > 1]
    reasons = [row[:1] + row[3:4] for row in rows if row not in scored]
    repeats = [row[:2] == before[:2] for row, before in zip(scored, [header, *scored], strict=False)]
    shown = [["", "", *row[2:]] if repeat else row for row, repeat in zip(scored, repeats, strict=True)]
    tables = [text_rows([header, *shown], n_left=3)] + ([text_rows(reasons, n_left=2)] if reasons else [])
    return "\n".join([*_heads(summaries), NOTE, *tables])


def markdown_table(summaries: Sequence[Mapping[str, Any]]) -> str:
    """The table in Markdown."""
    header, rows = _grid(summaries)
    return (
        "\n".join([*(f"{head}  " for head in _heads(summaries)), NOTE, "", markdown_rows([header, *rows], 3)]) + "\n"
    )


def models_table(summaries: Sequence[Mapping[str, Any]]) -> str:
    """A table in Markdown with a row for each model and, for each task, the metrics that papers compare."""
    columns: dict[tuple[str, str], set[str]] = {}
    cells: list[dict[tuple[str, str], str]] = []
    for summary in summaries:
        own = {}
        for entry in summary["results"]:
            for metric, protocol, value in all_metrics(entry):
                if entry["kind"] == "retrieval" and metric not in COMPARED:
                    continue
                key = (task_title(entry), protocol_title(COMPARED.get(metric, metric), protocol))
                columns.setdefault(key, set()).add(size_text(entry))
                own[key] = f"{value_text(metric, value)} {interval_text(value)}".removesuffix(" -")
        cells.append(own)
    header = ["model", "checkpoint"]
    header += [
        f"{task}, {metric}" + (f" ({' / '.join(sorted(sizes))})" if any(sizes) else "")
        for (task, metric), sizes in columns.items()
    ]
    rows = [
        [summary["checkpoint"], CHOSEN_ON[summary["chosen_on"]], *(own.get(key, "not run") for key in columns)]
        for summary, own in zip(summaries, cells, strict=True)
    ]
    return f"Suite {summaries[0]['suite']}, in %. {NOTE}\n\n{markdown_rows([header, *rows], 2)}\n"


def csv_table(summaries: Sequence[Mapping[str, Any]]) -> str:
    """One line for each model, task and metric; values are fractions, or ranks."""
    stream = io.StringIO()
    fields = ["checkpoint", "fingerprint", "suite", "chosen_on", "task", "kind", "language", "status", "reason"]
    fields += ["n_clips", "n_texts", "metric", "value", "low", "high", "n", "protocol"]
    writer = csv.DictWriter(stream, fields, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for summary in summaries:
        for entry in summary["results"]:
            for metric, protocol, value in list(all_metrics(entry)) or [("", "", {})]:
                writer.writerow({**summary, **entry, "metric": metric, **value, "protocol": protocol})
    return stream.getvalue()


def write_tables(summaries: Sequence[Mapping[str, Any]], folder: str | Path) -> list[Path]:
    """Writes `results.md`, `results.csv`, `results.png` and `models.md`, and returns their paths.

    Of a single model there is also `model-index.yaml`, the text that goes between the `---` lines of its card.
    """
    from huggingface_hub import ModelCardData

    folder = Path(folder)
    texts = {"results.md": markdown_table(summaries), "results.csv": csv_table(summaries)}
    texts["models.md"] = models_table(summaries)
    done = any(entry.get("metrics") for summary in summaries for entry in summary["results"])
    if len(summaries) == 1 and done:
        name = Path(summaries[0]["checkpoint"]).name
        card = ModelCardData(model_name=name, eval_results=model_index(summaries[0]))
        texts["model-index.yaml"] = card.to_yaml() + "\n"
    for name, text in texts.items():
        write_whole(folder / name, text)
    files = [folder / name for name in texts]
    if done:
        shares = {summary["checkpoint"]: _shares(summary) for summary in summaries}
        plot_intervals(shares, "\n".join(_heads(summaries)), folder / "results.png")
        files.append(folder / "results.png")
    return files


def _shares(summary: Mapping[str, Any]) -> dict[str, tuple[float, float, float]]:
    """Every share of a summary, by task and metric, as value and ends of the interval in percent."""
    shares = {}
    for entry in summary["results"]:
        for metric, protocol, value in all_metrics(entry):
            if is_share(metric):
                ends = [value["value"] if value[end] is None else value[end] for end in ("low", "high")]
                shares[f"{task_title(entry)}: {protocol_title(metric, protocol)}"] = tuple(
                    100 * number for number in (value["value"], *ends)
                )
    return shares


# ---- model-index ----


def model_index(summary: Mapping[str, Any], revision: str | None = None) -> list["EvalResult"]:
    """The results of one model as entries for the `model-index` of its card, shares in percent as leaderboards show them.

    Each entry names the data, the split, the number of queries, the interval, what the figure depends on beside the
    model, and how the checkpoint was chosen.

    Args:
        summary: The results.
        revision: Hash of the ids and captions of the data, where all tasks are on the same data.
    """
    from huggingface_hub import EvalResult

    results = []
    for entry in summary["results"]:
        task_type, task_name = _KINDS[entry["kind"]]
        depends_on = {key: entry["record"][key] for key in _DEPENDS_ON if entry.get("record", {}).get(key)}
        dataset_args = {key: entry[key] for key in _OF_DATA if entry.get(key)}
        # the path of a folder may tell who trained where
        data = str(entry.get("data"))
        data = Path(data).name if Path(data).is_absolute() else data
        for metric, protocol, value in all_metrics(entry):
            unit, scale = ("%", 100) if is_share(metric) else ("rank", 1)
            ends = [round(scale * value[end], 4) for end in ("low", "high") if value[end] is not None]
            on_test = " (checkpoint chosen on test)" if summary["chosen_on"] == "test" else ""
            results.append(
                EvalResult(
                    task_type=task_type,
                    task_name=task_name,
                    dataset_type=data,
                    dataset_name=", ".join(filter(None, [task_title(entry), size_text(entry)])),
                    dataset_config=entry["language"],
                    dataset_split=entry["split"],
                    dataset_revision=revision,
                    dataset_args=dataset_args or None,
                    metric_type=metric,
                    metric_name=protocol_title(metric.replace("_", " ").replace("/", ", "), protocol) + on_test,
                    metric_value=round(scale * value["value"], 4),
                    metric_args={
                        "chosen_on": summary["chosen_on"] or "not recorded",
                        "fingerprint": summary["fingerprint"],
                        **depends_on,
                        **({"protocol": protocol} if protocol else {}),
                        "unit": unit,
                        **({"interval_95": ends} if ends else {}),
                        "n": value["n"],
                    },
                )
            )
    return results
