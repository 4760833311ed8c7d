"""Runs a suite: rows in; scores with intervals, per-query results and the record of how they came about out."""

import csv
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from supclap.data.languages import nllb_code
from supclap.data.manifest import build_manifest, save_manifest
from supclap.data.rows import Rows, caption_languages, check_row, removed_of
from supclap.errors import DataNotFoundError, name_indices
from supclap.evaluation import queries as query_files
from supclap.evaluation.cache import CachedEncoder
from supclap.evaluation.inputs import Column
from supclap.evaluation.intervals import bootstrap_mean_average_precision, metrics_with_intervals, value_with_interval
from supclap.evaluation.queries import Queries
from supclap.evaluation.retrieval import PROTOCOLS, metrics_from_ranks, retrieval_ranks
from supclap.evaluation.suite import Suite, Task, how_to_get, load_rows_of_languages
from supclap.evaluation.zero_shot import (
    average_prompts,
    check_labels,
    label_prompts,
    label_scores,
    multi_label_metrics,
    row_targets,
    zero_shot_metrics,
)
from supclap.files import RESULTS, replacing, write_json


DONE, NOT_RUN, FAILED = "done", "not run", "failed"
MEAN = "mean"


def evaluate_suite(
    encoder: CachedEncoder,
    suite: Suite,
    output_dir: str | Path,
    root: str | Path,
    chosen_on: str | None = None,
    load_corpus: Callable[..., Sequence[dict]] | None = None,
    skip_bad: bool = False,
    report: Callable[[str], None] = print,
    progress: bool = False,
) -> dict[str, Any]:
    """Runs every task of a suite whose data are there. Stopped and started again, it goes on where it was.

    Args:
        encoder: What is scored.
        suite: The tasks.
        output_dir: Where `results.json`, per-query results, the manifest of the data and pictures go; those of each
            task are written when it is done, in place of what an earlier evaluation left there.
        root: Where the relative data folders of the tasks start.
        chosen_on: How the checkpoint was chosen: `validation`, `test` or `last`; `None` when that is not known.
        load_corpus: See [`~supclap.evaluation.suite.load_rows`].
        skip_bad: The same; how many rows were left out is said in the record of the score.
        report: Called with a line about each task that runs or fails.
        progress: Whether to show a bar of the clips of each task on stderr.

    Returns:
        What `results.json` holds: `checkpoint`, `fingerprint`, `suite`, `chosen_on`, `encoder` and `results`, one
        entry a task, and language of it, with `status` `done`, `not run` (the data are not there) or `failed`; the
        last two have a `reason`, and what was not run says how to `get` its data. A task that fails, whatever the
        error, does not keep the others from being run.
    """
    output_dir, root = Path(output_dir), Path(root)
    output_dir.mkdir(parents=True, exist_ok=True)
    for path in (output_dir / query_files.FOLDER).glob("*.npz"):  # they would be taken for this evaluation's
        path.unlink()
    manifest = build_manifest({})
    summary = {
        "checkpoint": encoder.encoder.name,
        "fingerprint": encoder.encoder.fingerprint,
        "suite": suite.name,
        "chosen_on": chosen_on,
        "encoder": encoder.encoder.record,
        "versions": {name: version(name) for name in ("supclap", "torch", "transformers")},
        "results": [],
    }
    for task in suite.tasks:
        head = {"task": task.name, "kind": task.kind, "language": None}
        try:
            entries, data = _run_task(task, encoder, output_dir, root, load_corpus, skip_bad, report, progress)
            manifest["splits"] |= data
        except DataNotFoundError as error:
            entries = [{**head, **_not_run(task, str(error))}]
        except Exception as error:  # hours of other tasks must not be lost to the one
            entries = [{**head, "status": FAILED, "reason": f"{type(error).__name__}: {error}"}]
        for entry in entries:
            if entry["status"] == FAILED:
                report(f"{task.name}: {entry['status']}: {entry['reason']}")
        summary["results"] += entries
        save_manifest(manifest, output_dir)
        write_json(output_dir / RESULTS, summary)
    return summary


def _not_run(task: Task, reason: str) -> dict[str, str]:
    return {"status": NOT_RUN, "reason": reason, "get": how_to_get(task)}


def _run_task(task, encoder, output_dir, root, load_corpus, skip_bad, report, progress) -> tuple[list[dict], dict]:
    """The entries of a task, and the manifest of its data by its name."""
    bar = partial(tqdm, desc=task.name, disable=not progress)
    if task.kind == "mteb":
        from supclap.evaluation.mteb import run_mteb_task

        with bar(total=1, unit="task") as shown:
            entry = run_mteb_task(task, encoder)
            shown.update()
        return [entry], {}
    rows, absent = load_rows_of_languages(task, root, load_corpus, skip_bad)
    audio = Column(rows, "audio")
    removed = removed_of(rows)
    rows = _without_audio(rows)
    ids = clip_ids(rows)
    report(f"{task.name}: {len(ids)} clips")

    # what is wrong with captions or labels is said before hours of embedding
    side = _captions(rows) if task.kind == "retrieval" else _classes(task, rows)
    with bar(total=len(ids), unit="clip") as shown:
        embeds, contents = encoder.embed_audio(audio, ids, lambda done, _: shown.update(done - shown.n))
    if task.kind == "retrieval":
        entries = _retrieval(task, encoder, side, absent, ids, embeds.numpy(), contents, output_dir)
    else:
        entries = [_zero_shot(task, encoder, side, rows, ids, embeds.numpy(), contents, output_dir)]
    if removed:
        left_out = {"left_out": [row["id"] for row in removed]}
        entries = [entry | left_out if entry["status"] == DONE else entry for entry in entries]
    return entries, {task.name: _describe_data(rows, contents, removed)}


def _describe_data(rows: Sequence[Mapping[str, Any]], contents: list[str], removed: list[dict]) -> dict[str, Any]:
    """The manifest of the rows of a task. Their hashes are known by now, and the audio is not read again."""
    described = Rows(({"captions": [], **row} for row in rows), removed)
    described = build_manifest({"task": described}, content_hashes=False)["splits"]["task"]
    return described | {
        "clips": [[clip, content] for (clip, _), content in zip(described["clips"], contents, strict=True)]
    }


def _without_audio(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Rows to look through often: reading a cell of rows that lie in a file reads the whole row, sound and all."""
    if hasattr(rows, "without_audio"):
        return [rows.without_audio(index) for index in range(len(rows))]
    return rows.remove_columns("audio") if hasattr(rows, "remove_columns") else rows


def clip_ids(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The ids of rows as strings.

    Raises:
        ValueError: A row has none, or two rows have the same.
    """
    ids = list(Column(rows, "id"))
    without = [position for position, clip in enumerate(ids) if clip is None]
    if without:
        raise ValueError(f"Rows {name_indices(without)} have no `id`.")
    ids = [str(clip) for clip in ids]
    seen: set[str] = set()
    twice = [clip for clip in ids if clip in seen or seen.add(clip)]
    if twice:
        raise ValueError(f"{len(twice)} rows repeat an id, the first {twice[0]!r}: one row a clip, with all captions.")
    return ids


def _entry(task: Task, language: str | None, n_clips: int, **more: Any) -> dict[str, Any]:
    expected = {} if task.expected_clips is None else {"expected_clips": task.expected_clips}
    head = {"task": task.name, "kind": task.kind, "language": language, "status": DONE}
    split = None if task.table else task.split
    source = {
        "data": task.corpus or task.table,
        "split": ",".join(map(str, split)) if isinstance(split, list) else split,
    }
    source |= {key: value for key, value in (("where", task.where), ("options", task.options)) if value}
    return {**head, **source, "n_clips": n_clips, **expected, **more}


# ---- Retrieval ----


def _captions(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, str, str | None]]:
    """Every caption as (clip, text, language code)."""
    captions = []
    for clip, row in enumerate(rows):
        check_row({"audio": "is read later", **row}, clip)
        captions += [
            (clip, *caption) for caption in zip(row["captions"], map(nllb_code, caption_languages(row)), strict=True)
        ]
    return captions


def _retrieval(task, encoder, captions, absent, ids, audio, contents, output_dir) -> list[dict]:
    if not task.languages:
        return [_retrieve(task, encoder, None, captions, ids, audio, contents, output_dir)[0]]
    there = ", ".join(sorted({str(code) for _, _, code in captions}))
    entries, queries = {}, {}
    for language in task.languages:
        own = [caption for caption in captions if caption[2] == nllb_code(language)]
        reason = absent.get(language, f"No caption is in {language!r}; the languages of the captions are {there}.")
        if own:
            entries[language], queries[language] = _retrieve(
                task, encoder, language, own, ids, audio, contents, output_dir
            )
        else:
            entries[language] = {"task": task.name, "kind": task.kind, "language": language, **_not_run(task, reason)}
    if not queries:
        raise ValueError(reason)
    return [*entries.values(), _mean_entry(task, [entries[language] for language in queries], queries)]


def _mean_entry(task: Task, entries: list[dict], queries: Mapping[str, Mapping[str, Queries]]) -> dict[str, Any]:
    """The unweighted mean over the languages that were run; its name says so where some were not."""
    mean = {}
    for name in next(iter(queries.values())):
        every = query_files.mean_over_languages({language: own[name] for language, own in queries.items()})
        mean[name] = value_with_interval(every.values, every.clusters, groups=every.groups)
    for name in [name for name in entries[0]["metrics"] if name not in mean]:  # median ranks
        medians = [entry["metrics"][name] for entry in entries]
        n = sum(median["n"] for median in medians)
        mean[name] = {**medians[0], "value": float(np.mean([median["value"] for median in medians])), "n": n}
    n_texts = sum(entry["n_texts"] for entry in entries)
    record = {"protocols": PROTOCOLS, "mean": "unweighted mean over the languages; intervals resample clips"}
    record["languages"] = list(queries)
    n_clips = max(entry["n_clips"] for entry in entries)
    title = MEAN if len(queries) == len(task.languages) else f"{MEAN} of {len(queries)} of {len(task.languages)}"
    return _entry(task, title, n_clips, n_texts=n_texts, metrics=mean, record=record)


def _retrieve(task, encoder, language, captions, ids, audio, contents, output_dir) -> tuple[dict, dict[str, Queries]]:
    """The entry of one language, and the values of its queries. Clips without a caption in it are left out."""
    clips = sorted({clip for clip, _, _ in captions})
    row_of = {clip: row for row, clip in enumerate(clips)}
    texts = [text for _, text, _ in captions]
    codes = [code for _, _, code in captions]
    # one language for all, or none: an encoder is told only what is known of every caption
    text = encoder.embed_texts(texts, None if None in codes else codes).numpy()
    ranks = retrieval_ranks(audio[clips], text, np.array([row_of[clip] for clip, _, _ in captions]))
    arrays = query_files.retrieval_queries(
        ranks, [ids[clip] for clip in clips], texts, [contents[clip] for clip in clips]
    )
    file = f"{query_files.FOLDER}/{task.name if language is None else f'{task.name}[{language}]'}.npz"
    query_files.save_queries(output_dir / file, arrays)
    averages = metrics_from_ranks(ranks)
    medians = {  # no interval: see supclap.evaluation.intervals
        f"{direction}/median_rank": {
            "value": averages[f"{direction}/median_rank"],
            "low": None,
            "high": None,
            "n": averages[count],
        }
        for direction, count in (("text_to_audio", "n_text"), ("audio_to_text", "n_audio"))
    }
    counts = ranks.n_references
    entry = _entry(
        task,
        language,
        len(clips),
        n_texts=len(texts),
        captions_per_clip=[int(counts.min()), int(counts.max())],
        metrics=metrics_with_intervals(ranks) | medians,
        record={"protocols": PROTOCOLS, "language_of_captions": "unknown" if None in codes else sorted(set(codes))},
        queries=file,
    )
    return entry, query_files.metric_queries(arrays)


# ---- Zero-shot classification ----


def _classes(task: Task, rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str], list[list[int]], bool]:
    """The labels, how prompts spell them, the indices of each row's labels, and whether a row may have several."""
    column = "label" if rows[0].get("label") is not None else "labels"
    labels = [str(label) for label in task.labels] or _labels_of(rows, column)
    spelling = {str(label): words for label, words in task.spelling.items()}
    strange = sorted(set(spelling) - set(labels))
    if strange:
        raise ValueError(
            f"spelling names {strange[0]!r}, which is no label; the labels are {', '.join(labels[:20])} …"
        )
    if len(labels) < 2:
        raise ValueError(f"{task.name}: classification needs at least two labels, got {labels}. Name all by `labels`.")
    words = check_labels([spelling.get(label, label) for label in labels])
    return labels, words, row_targets(rows, column, check_labels(labels)), column == "labels"


def _zero_shot(task, encoder, classes, rows, ids, audio, contents, output_dir) -> dict:
    labels, words, targets, has_several = classes
    prompts = label_prompts(words, task.templates)
    languages = None if task.language is None else [nllb_code(task.language)] * len(prompts)
    embeds = average_prompts(encoder.embed_texts(prompts, languages), len(labels)).numpy()
    record = {
        "templates": list(task.templates),
        "labels": dict(zip(labels, words, strict=True)),
        "labels_from": "the suite" if task.labels else "the rows",
        "language": task.language,
    }
    if task.expected_labels is not None:
        record["expected_labels"] = task.expected_labels
    file = f"{query_files.FOLDER}/{task.name}.npz"
    arrays = {"clip_ids": np.asarray(ids), "contents": np.asarray(contents), "labels": np.asarray(labels)}
    more: dict[str, Any] = {"n_labels": len(labels), "record": record, "queries": file}
    if not has_several:
        target = np.array([one[0] for one in targets])
        score = zero_shot_metrics(audio, embeds, target, labels)
        arrays |= {"targets": target, "predicted": score["predicted"]}
        more["metrics"] = {"accuracy": value_with_interval(score["correct"], np.arange(len(ids)))}
        folds = list(Column(rows, "fold"))
        if None not in folds:
            correct = {str(fold): [] for fold in sorted(set(folds))}
            for fold, right in zip(folds, score["correct"].tolist(), strict=True):
                correct[str(fold)].append(right)
            more["per_fold"] = {fold: float(np.mean(values)) for fold, values in correct.items()}
        more["confusion"] = _save_confusion(score["confusion"], labels, output_dir, task.name)
        clips_of = score["confusion"].sum(axis=1)
        measure = "accuracy"
    else:
        present = np.zeros((len(ids), len(labels)), dtype=np.int8)
        for row, target in enumerate(targets):
            present[row, target] = 1
        scores = label_scores(audio, embeds)
        arrays |= {"targets": present, "scores": scores}
        score = multi_label_metrics(audio, embeds, present, labels)
        low = high = None
        if len(ids) > 1:
            draws = bootstrap_mean_average_precision([scores], present)[0]
            low, high = (float(value) for value in np.quantile(draws, [0.025, 0.975]))
        more["metrics"] = {"mAP": {"value": score["mAP"], "low": low, "high": high, "n": score["n"]}}
        clips_of = present.sum(axis=0)
        measure = "average_precision"
    query_files.save_queries(output_dir / file, arrays)
    more["per_class"] = _save_per_class(
        score["per_class"], dict(zip(labels, clips_of.tolist())), measure, output_dir, task.name
    )
    return _entry(task, None, len(ids), **more)


def _labels_of(rows: Sequence[Mapping[str, Any]], column: str) -> list[str]:
    found: set[str] = set()
    for row in rows:
        value = row.get(column)
        for label in [value] if column == "label" else value or []:
            if not isinstance(label, str):
                raise ValueError(
                    f"Row {row.get('id')!r} has the label {label!r}: give the names of classes by `labels`."
                )
            found.add(label)
    return sorted(found)


def _save_per_class(per_class, clips_of, measure, output_dir: Path, name: str) -> str:
    """A table of every class that has a clip, the worst first."""
    file = output_dir / "per_class" / f"{name}.csv"
    with replacing(file) as part, part.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["label", "clips", measure])
        for label, value in sorted(per_class.items(), key=lambda item: item[1]):
            writer.writerow([label, clips_of[label], f"{value:.6f}"])
    return str(file.relative_to(output_dir))


def _save_confusion(confusion: np.ndarray, labels: list[str], output_dir: Path, name: str) -> str:
    from supclap.evaluation.tables import plot_confusion

    file = output_dir / "confusion" / f"{name}.png"
    file.parent.mkdir(exist_ok=True)
    plot_confusion(confusion, labels, file)
    return str(file.relative_to(output_dir))
