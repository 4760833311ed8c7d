"""Runs a suite. The way of a task is: load its rows, embed the clips, compute the scores, write them.

`load_task`, `embed_audio` in `_run`, `_retrieve` or `_classify`, and `save_score` are these steps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from supclap.data.languages import nllb_code
from supclap.data.manifest import build_manifest, save_manifest
from supclap.data.rows import Rows, removed_of
from supclap.errors import DataNotFoundError, name_indices
from supclap.evaluation.cache import ClipEncoder
from supclap.evaluation.inputs import Column, without_audio
from supclap.evaluation.intervals import bootstrap_mean_average_precision, value_with_interval
from supclap.evaluation.languages import (
    Caption,
    EmbeddedClips,
    Retrieval,
    captions_of,
    languages_of,
    retrieval_scores,
    retrieve,
)
from supclap.evaluation.results import DONE, FAILED, MEAN, NOT_RUN, Score, clear_results, save_score
from supclap.evaluation.retrieval import PROTOCOLS
from supclap.evaluation.suite import Suite, Task, how_to_get, load_rows_of_languages
from supclap.evaluation.zero_shot import (
    check_labels,
    embed_labels,
    label_scores,
    multi_label_metrics,
    row_targets,
    zero_shot_metrics,
)
from supclap.files import RESULTS, write_json


@dataclass(frozen=True)
class TaskRun:
    """A task, its rows, and what embeds them.

    Attributes:
        task: The task.
        encoder: What is scored.
        rows: The rows without their audio.
        audio: The clip of each row, read when asked for.
        ids: The id of each row.
        removed: What was left out of the rows.
        absent: Why a language of the task is not there, for each that is not.
    """

    task: Task
    encoder: ClipEncoder
    rows: Sequence[Mapping[str, Any]]
    audio: Sequence[Any]
    ids: list[str]
    removed: list[dict]
    absent: Mapping[str, str]

    def entry(self, n_clips: int, language: str | None = None, **more: Any) -> dict[str, Any]:
        """An entry of the results; see [`supclap.evaluation.results`]."""
        task = self.task
        split = ",".join(map(str, task.split)) if isinstance(task.split, list) else task.split
        head = {"task": task.name, "kind": task.kind, "language": language, "status": DONE, "data": task.data}
        optional = {
            "where": task.where,
            "options": task.options,
            "expected_clips": task.expected_clips,
            "left_out": [row["id"] for row in self.removed],
        }
        optional = {key: value for key, value in optional.items() if value}
        return {**head, "split": None if task.table else split, "n_clips": n_clips, **optional, **more}


def evaluate_suite(
    encoder: ClipEncoder,
    suite: Suite,
    output_dir: str | Path | None,
    root: str | Path | None = None,
    chosen_on: str | None = None,
    load_corpus: Callable[..., Sequence[dict]] | None = None,
    skip_bad: bool = False,
    report: Callable[[str], None] = print,
    progress: bool = False,
    of_run: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Runs every task of a suite whose data are there. Stopped and started again, it goes on where it was.

    Args:
        encoder: What is scored.
        suite: The tasks.
        output_dir: Where `results.json`, per-query results, the manifest of the data and pictures go. Those of each
            task are written when it is done, in place of what an earlier evaluation left there. With `None` nothing is
            written, as on all processes but the first.
        root: Where the relative data folders of the tasks start. `None` where the tasks have their rows; the manifest
            of these is not written, for who has the rows keeps it.
        chosen_on: How the checkpoint was chosen: `validation`, `test` or `last`; `None` when that is not known.
        load_corpus: See [`~supclap.evaluation.suite.load_rows`].
        skip_bad: The same. The entry of a task lists the rows that were left out.
        report: Called with a line about each task that runs or fails.
        progress: Whether to show a bar of the clips of each task on stderr.
        of_run: `seed` and `steps` of the training run that the suite ends. An error of a task is then raised, and no
            results are written, so that the run does not pass for one that was evaluated.

    Returns:
        The content of `results.json`, see [`supclap.evaluation.results`]. Unless it ends a training run, a task that
        fails, whatever the error, does not keep the others from being run.
    """
    folder = None if output_dir is None else Path(output_dir)
    if folder is not None:
        clear_results(folder)
    manifest = build_manifest({})
    summary = {
        "checkpoint": encoder.encoder.name,
        "fingerprint": encoder.encoder.fingerprint,
        "suite": suite.name,
        "chosen_on": chosen_on,
        **(of_run or {}),
        "encoder": encoder.encoder.record,
        "versions": {name: version(name) for name in ("supclap", "torch", "transformers")},
        "results": [],
    }

    def write() -> None:
        if folder is not None:
            if root is not None:
                save_manifest(manifest, folder)
            write_json(folder / RESULTS, summary)

    for task in suite.tasks:
        try:
            if task.kind == "mteb":
                scores = _run_mteb(task, encoder, progress)
            else:
                run = load_task(task, encoder, root, load_corpus, skip_bad)
                report(f"{task.name}: {len(run.ids)} clips")
                scores, manifest["splits"][task.name] = _run(run, progress)
            entries = [score.entry if folder is None else save_score(folder, score) for score in scores]
        except Exception as error:  # hours of other tasks must not be lost to the one
            if of_run is not None:
                raise
            entries = [_not_scored(task, error)]
            if entries[0]["status"] == FAILED:
                report(f"{task.name}: {FAILED}: {entries[0]['reason']}")
        summary["results"] += entries
        if of_run is None:
            write()
    write()
    return summary


def _not_scored(task: Task, error: Exception, language: str | None = None) -> dict[str, Any]:
    """The entry of a task, or of a language of it, without a score."""
    entry = {"task": task.name, "kind": task.kind, "language": language}
    if isinstance(error, DataNotFoundError):
        return {**entry, "status": NOT_RUN, "reason": str(error), "get": how_to_get(task)}
    return {**entry, "status": FAILED, "reason": f"{type(error).__name__}: {error}"}


def _run_mteb(task: Task, encoder: ClipEncoder, progress: bool) -> list[Score]:
    from supclap.evaluation.mteb import run_mteb_task

    with tqdm(total=1, unit="task", desc=task.name, disable=not progress) as bar:
        entry = run_mteb_task(task, encoder)
        bar.update()
    return [Score(entry)]


def load_task(
    task: Task,
    encoder: ClipEncoder,
    root: str | Path | None,
    load_corpus: Callable[..., Sequence[dict]] | None = None,
    skip_bad: bool = False,
) -> TaskRun:
    """Loads the rows of a task; arguments as in [`evaluate_suite`]."""
    rows, absent = load_rows_of_languages(task, Path(root or "."), load_corpus, skip_bad)
    looked_at = without_audio(rows)
    return TaskRun(task, encoder, looked_at, Column(rows, "audio"), clip_ids(looked_at), removed_of(rows), absent)


def _run(run: TaskRun, progress: bool) -> tuple[list[Score], dict[str, Any]]:
    """The scores of a task, and the manifest of its data."""
    # what is wrong with captions or labels is said before hours of embedding
    texts = captions_of(run.rows) if run.task.kind == "retrieval" else classes_of(run)
    with tqdm(total=len(run.ids), unit="clip", desc=run.task.name, disable=not progress) as bar:
        embeds, contents = run.encoder.embed_audio(run.audio, run.ids, lambda done, _: bar.update(done - bar.n))
    clips = EmbeddedClips(run.ids, embeds, contents)
    scores = _classify(run, texts, clips) if isinstance(texts, Classes) else _retrieve(run, texts, clips)
    return scores, _describe_data(run, contents)


def _describe_data(run: TaskRun, contents: list[str]) -> dict[str, Any]:
    """The manifest of the rows of a task. Their hashes are known by now, and the audio is not read again."""
    described = Rows(({"captions": [], **row} for row in run.rows), run.removed)
    described = build_manifest({"task": described}, content_hashes=False)["splits"]["task"]
    return described | {
        "clips": [[clip, content] for (clip, _), content in zip(described["clips"], contents, strict=True)]
    }


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


# ---- Retrieval ----


def _retrieve(run: TaskRun, captions: Sequence[Caption], clips: EmbeddedClips) -> list[Score]:
    """A score for all captions, or one for each language and their mean."""
    languages = run.task.languages or [None]
    size, protocol = run.task.pool_size, run.task.protocol
    found = {code: retrieve(run.encoder, clips, captions, code, size, protocol, both=True) for code in languages}
    scores = [
        _missing_language(run, captions, language) if one is None else _score_retrieval(run, language, one)
        for language, one in found.items()
    ]
    there = {language: one for language, one in found.items() if one is not None}
    if not there:
        raise ValueError(scores[-1].entry["reason"])
    return [*scores, _score_mean(run, there)] if run.task.languages else scores


def _score_retrieval(run: TaskRun, language: str | None, retrieval: Retrieval) -> Score:
    counts = retrieval.ranks.n_references
    known = "unknown" if None in retrieval.languages else sorted(retrieval.languages)
    entry = run.entry(
        len(retrieval.clips),
        language,
        n_texts=len(retrieval.captions),
        n_different_texts=retrieval.n_different,
        n_shared_captions=retrieval.n_shared,
        captions_per_clip=[int(counts.min()), int(counts.max())],
        pool_size=retrieval.pool_size,
        **_metrics_of_protocols({language: retrieval}),
        record={**_protocol_record(run.task), "language_of_captions": known},
    )
    return Score(entry, retrieval.queries)


def _metrics_of_protocols(by_language: Mapping[str | None, Retrieval]) -> dict[str, dict[str, Any]]:
    """The metrics, and where any language differs under the other protocol also those under it."""
    metrics = {"metrics": retrieval_scores(by_language)}
    others = [one.other for one in by_language.values() if one.other is not None]
    if others:
        by_other = {language: one.other or one for language, one in by_language.items()}
        metrics[f"metrics_{others[0].protocol}"] = retrieval_scores(by_other)
    return metrics


def _protocol_record(task: Task) -> dict[str, Any]:
    return {"protocol": task.protocol, "protocols": PROTOCOLS[task.protocol]}


def _missing_language(run: TaskRun, captions: Sequence[Caption], language: str) -> Score:
    there = ", ".join(languages_of(captions))
    reason = f"No caption is in {language!r}; the languages of the captions are {there}."
    return Score(_not_scored(run.task, DataNotFoundError(run.absent.get(language, reason)), language))


def _score_mean(run: TaskRun, by_language: Mapping[str, Retrieval]) -> Score:
    """The unweighted mean over the languages that are there. Its name says so where some are not."""
    n, of = len(by_language), len(run.task.languages)
    several = list(by_language.values())
    record = {**_protocol_record(run.task), "mean": "unweighted mean over the languages; intervals resample clips"}
    return Score(
        run.entry(
            max(len(one.clips) for one in several),
            MEAN if n == of else f"{MEAN} of {n} of {of}",
            n_texts=sum(len(one.captions) for one in several),
            n_different_texts=sum(one.n_different for one in several),
            n_shared_captions=sum(one.n_shared for one in several),
            pool_size=run.task.pool_size if any(one.pool_size for one in several) else None,
            **_metrics_of_protocols(by_language),
            record={**record, "languages": list(by_language)},
        )
    )


# ---- Zero-shot classification ----


@dataclass(frozen=True)
class Classes:
    """The classes of a task, and those of each row.

    Attributes:
        labels: The name of each class.
        words: How prompts spell it.
        targets: The indices of the labels of each row.
        has_several: Whether a row may have several labels, or none.
    """

    labels: list[str]
    words: list[str]
    targets: list[list[int]]
    has_several: bool


def classes_of(run: TaskRun) -> Classes:
    """The classes of a task: those that it names, else those that occur in its rows.

    Raises:
        ValueError: There are too few, two read the same, or a row has no label or an unknown one.
    """
    task, rows = run.task, run.rows
    has_several = rows[0].get("label") is None
    column = "labels" if has_several else "label"
    labels = [str(label) for label in task.labels] or _labels_in(rows, column)
    spelling = {str(label): words for label, words in task.spelling.items()}
    strange = sorted(set(spelling) - set(labels))
    if strange:
        raise ValueError(
            f"spelling names {strange[0]!r}, which is no label; the labels are {', '.join(labels[:20])} …"
        )
    if len(labels) < 2:
        raise ValueError(f"{task.name}: classification needs at least two labels, got {labels}. Name all by `labels`.")
    words = check_labels([spelling.get(label, label) for label in labels])
    return Classes(labels, words, row_targets(rows, column, check_labels(labels)), has_several)


def _labels_in(rows: Sequence[Mapping[str, Any]], column: str) -> list[str]:
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


def _classify(run: TaskRun, classes: Classes, clips: EmbeddedClips) -> list[Score]:
    task, labels = run.task, classes.labels
    language = None if task.language is None else nllb_code(task.language)
    embeds = embed_labels(run.encoder, classes.words, task.templates, language)
    record = {
        "templates": list(task.templates),
        "labels": dict(zip(labels, classes.words, strict=True)),
        "labels_from": "the suite" if task.labels else "the rows",
        "language": task.language,
        **({} if task.expected_labels is None else {"expected_labels": task.expected_labels}),
    }
    score = (_several_labels if classes.has_several else _one_label)(classes, clips.embeds, embeds)
    queries = {"clip_ids": clips.ids, "contents": clips.contents, "labels": labels}
    queries = {name: np.asarray(values) for name, values in queries.items()} | score.queries
    folds = {} if classes.has_several else _per_fold(run.rows, queries["predicted"] == queries["targets"])
    entry = run.entry(len(clips.ids), n_labels=len(labels), record=record, **score.entry, **folds)
    return [replace(score, entry=entry, queries=queries)]


def _one_label(classes: Classes, audio: torch.Tensor, label_embeds: torch.Tensor) -> Score:
    """The accuracy, where each clip has one label."""
    targets = np.array([one[0] for one in classes.targets])
    score = zero_shot_metrics(audio, label_embeds, targets, classes.labels)
    accuracy = value_with_interval(score["correct"], np.arange(len(targets)))
    queries = {"targets": targets, "predicted": score["predicted"]}
    per_class = _per_class(classes, score["per_class"], score["confusion"].sum(axis=1))
    return Score({"metrics": {"accuracy": accuracy}}, queries, per_class, score["confusion"])


def _several_labels(classes: Classes, audio: torch.Tensor, label_embeds: torch.Tensor) -> Score:
    """The mean average precision, where a clip has any number of labels."""
    targets = np.zeros((len(classes.targets), len(classes.labels)), dtype=np.int8)
    for row, target in enumerate(classes.targets):
        targets[row, target] = 1
    score = multi_label_metrics(audio, label_embeds, targets, classes.labels)
    scores = label_scores(audio, label_embeds)
    low = high = None
    if len(targets) > 1:
        draws = bootstrap_mean_average_precision([scores], targets)[0]
        low, high = (float(value) for value in np.quantile(draws, [0.025, 0.975]))
    precision = {"value": score["mAP"], "low": low, "high": high, "n": score["n"]}
    per_class = _per_class(classes, score["per_class"], targets.sum(axis=0))
    return Score({"metrics": {"mAP": precision}}, {"targets": targets, "scores": scores}, per_class)


def _per_class(classes: Classes, values: Mapping[str, float], n_clips: np.ndarray) -> list[tuple[str, int, float]]:
    counts = dict(zip(classes.labels, n_clips.tolist(), strict=True))
    return [(label, counts[label], value) for label, value in values.items()]


def _per_fold(rows: Sequence[Mapping[str, Any]], correct: np.ndarray) -> dict[str, dict[str, float]]:
    """The accuracy of each fold, where all rows have one."""
    folds = list(Column(rows, "fold"))
    if None in folds:
        return {}
    named = np.array([str(fold) for fold in folds])
    return {"per_fold": {str(fold): float(correct[named == str(fold)].mean()) for fold in sorted(set(folds))}}
