"""`supclap data check`: reads all of a data set in parallel and reports what is in it and what is wrong with it."""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from .inspection import ClipFacts, inspect_clip, map_rows
from .rows import caption_languages, check_row, is_text


# Training refuses rows with these problems, and takes those with any other.
REFUSED = (
    "missing files",
    "unreadable audio",
    "clips of one id",
    "clips without captions",
    "captions empty or no text",
    "languages that do not fit",
)
KINDS = (
    *REFUSED,
    "silent audio",
    "clipped audio",
    "mostly zeros",
    "duplicate audio",
    "captions that read as missing",
    "captions without a letter",
    "duplicate captions",
)
# What programs write in place of a missing value, and a table that was saved as text then holds as a caption.
MISSING = ("nan", "none", "null", "n/a", "#n/a", "<na>")


def check_splits(
    splits: Mapping[str, Sequence[dict]], progress: bool = True, workers: int | None = None
) -> dict[str, dict]:
    """Reads every clip and caption of every split.

    Args:
        splits: Rows of each split, unusable ones included.
        progress: Whether to show a progress bar.
        workers: Threads; all cores when omitted.

    Returns:
        `splits`: for each its counts, hours, sampling rates, channels and lengths, its languages and scripts, and the
        `problems` found in it; `between_splits`: what occurs in two of them; `n_problems`: how many findings there are,
        and `n_refused` of those that training would refuse. A kind of problem has a `count` and all `findings`, each
        with the ids of its `clips` (between splits by split) and a `detail`.
    """
    facts = {name: _inspect(name, rows, progress, workers) for name, rows in splits.items()}
    report = {"splits": {name: _describe(looked) for name, looked in facts.items()}}
    report["between_splits"] = {name: _counted(items) for name, items in _leaks(facts).items()}
    findings = [*report["between_splits"].values()]
    findings += [item for split in report["splits"].values() for item in split["problems"].values()]
    report["n_problems"] = sum(item["count"] for item in findings)
    problems = [split["problems"] for split in report["splits"].values()]
    report["n_refused"] = sum(found[kind]["count"] for found in problems for kind in REFUSED)
    return report


def _counted(findings: list[dict]) -> dict:
    return {"count": len(findings), "findings": findings}


def _finding(clips: list[str] | dict[str, list[str]], detail: str | None = None) -> dict:
    return {"clips": clips, "detail": detail}


def _inspect(
    name: str, rows: Sequence[dict], progress: bool, workers: int | None
) -> list[tuple[dict, ClipFacts | None]]:
    """Each row without its audio, with the facts of that audio; `None` where it is missing."""

    def look(row: dict) -> tuple[dict, ClipFacts | None]:
        audio = row.get("audio")
        facts = None if audio is None else inspect_clip(audio, f"clip {row.get('id')!r}")
        return {key: value for key, value in row.items() if key != "audio"}, facts

    return list(map_rows(look, rows, f"reading {name}" if progress else None, workers))


def _describe(looked: Sequence[tuple[dict, ClipFacts | None]]) -> dict:
    read = [facts for _, facts in looked if facts is not None and facts.error is None]
    durations = np.array([facts.duration for facts in read]) if read else np.zeros(1)
    captions = [caption for row, _ in looked for caption in row.get("captions") or []]
    texts = list(filter(is_text, captions))
    words = np.array([len(text.split()) for text in texts]) if texts else np.zeros(1)
    languages = Counter(
        code or "not stated" for row, _ in looked if row.get("captions") for code in caption_languages(row)
    )
    return {
        "n_clips": len(looked),
        "n_captions": len(captions),
        "captions_per_clip": dict(sorted(Counter(len(row.get("captions") or []) for row, _ in looked).items())),
        "hours": float(sum(facts.duration for facts in read) / 3600),
        "seconds": _quantiles(durations),
        "words": _quantiles(words),
        "sampling_rates": dict(Counter(facts.sampling_rate for facts in read).most_common()),
        "channels": dict(Counter(facts.channels for facts in read).most_common()),
        "languages": dict(languages.most_common()),
        "scripts": dict(Counter(map(script_of, texts)).most_common()),
        "labels": len({row["label"] for row, _ in looked if row.get("label") is not None}),
        "problems": {name: _counted(items) for name, items in _problems(looked).items()},
    }


def _quantiles(values: np.ndarray) -> dict[str, float]:
    low, median, high = np.quantile(values, [0, 0.5, 1])
    return {"shortest": float(low), "median": float(median), "longest": float(high), "mean": float(values.mean())}


def _problems(looked: Sequence[tuple[dict, ClipFacts | None]]) -> dict[str, list[dict]]:
    problems: dict[str, list[dict]] = {kind: [] for kind in KINDS}
    by_id: Counter = Counter()
    by_audio: dict[str, list[str]] = defaultdict(list)
    by_caption: dict[str, dict[str, None]] = defaultdict(dict)

    def note(kind: str, detail: str | None = None) -> None:
        problems[kind].append(_finding([clip], detail))

    for index, (row, facts) in enumerate(looked):
        clip = str(row.get("id"))
        by_id[clip] += 1
        if facts is None:
            note("missing files", repr(row.get("file")))
        elif facts.error:
            note("unreadable audio", facts.error)
        else:
            by_audio[facts.audio_hash].append(clip)
            if facts.is_silent:
                note("silent audio")
            elif facts.zeros > 0.3:
                note("mostly zeros", f"{facts.zeros:.0%}")
            if facts.is_clipped:
                note("clipped audio", f"{facts.clipped:.2%} of its samples")
        captions = row.get("captions") or []
        if not captions:
            note("clips without captions")
        elif all(map(is_text, captions)):
            try:
                check_row(row | {"audio": ""}, index)
            except ValueError as error:
                note("languages that do not fit", str(error))
        for caption in captions:
            if not is_text(caption):
                note("captions empty or no text", repr(caption))
                continue
            if caption.strip().casefold() in MISSING:
                note("captions that read as missing", f"{caption!r}, perhaps an empty cell that was saved as text")
            elif not any(map(str.isalnum, caption)):
                note("captions without a letter", repr(caption))
            elif row.get("group") is None:  # the captions of a class are meant to be alike
                by_caption[" ".join(caption.casefold().split()).rstrip(".")][clip] = None
    problems["clips of one id"] = [_finding([clip], f"{n} rows") for clip, n in by_id.items() if n > 1]
    problems["duplicate audio"] = [_finding(clips) for clips in by_audio.values() if len(clips) > 1]
    problems["duplicate captions"] = [
        _finding(list(clips), repr(caption)) for caption, clips in by_caption.items() if len(clips) > 1
    ]
    return problems


def _leaks(facts: Mapping[str, Sequence[tuple[dict, ClipFacts | None]]]) -> dict[str, list[dict]]:
    """Clips that two splits share: by id, by recording, and by the samples of their audio."""
    keys = {
        "same id": lambda row, fact: row.get("id"),
        "same recording": lambda row, fact: row.get("recording"),
        "same audio": lambda row, fact: fact.audio_hash if fact is not None and not fact.error else None,
    }
    leaks = {}
    for name, key in keys.items():
        where: dict[str, dict[str, list[str]]] = defaultdict(dict)
        for split, looked in facts.items():
            for row, fact in looked:
                if (value := key(row, fact)) not in (None, ""):
                    where[value].setdefault(split, []).append(str(row.get("id")))
        leaks[name] = [
            _finding(found, str(value) if name == "same recording" else None)
            for value, found in where.items()
            if len(found) > 1
        ]
    return leaks


def script_of(text: str) -> str:
    """The script that most letters of a text are in, as Unicode calls it: `LATIN`, `CJK`, `HIRAGANA`, …"""
    scripts = Counter(unicodedata.name(letter, "UNKNOWN").split()[0] for letter in text if letter.isalpha())
    return scripts.most_common(1)[0][0] if scripts else "NONE"


def format_report(report: Mapping) -> str:
    """The report on one screen."""
    lines = []
    for name, split in report["splits"].items():
        seconds, words = split["seconds"], split["words"]
        lines += [
            f"{name}: {split['n_clips']} clips, {split['hours']:.2f} h, {split['n_captions']} captions"
            + (f", {split['labels']} labels" if split["labels"] else ""),
            f"  seconds   {seconds['shortest']:.2f} … {seconds['longest']:.2f}, median {seconds['median']:.2f}",
            f"  rates     {_counts(split['sampling_rates'], ' Hz')}; channels {_counts(split['channels'])}",
            f"  captions  {_counts(split['captions_per_clip'], ' per clip')}; {words['shortest']:.0f} … "
            f"{words['longest']:.0f} words, median {words['median']:.0f}",
            f"  language  {_counts(split['languages'])}; scripts {_counts(split['scripts'])}",
        ]
        lines += _findings(split["problems"])
    if len(report["splits"]) > 1:
        lines += ["between splits:", *_findings(report["between_splits"])]
    lines.append(f"{report['n_problems']} findings" if report["n_problems"] else "no findings")
    return "\n".join(lines)


def _counts(counts: Mapping, unit: str = "", most: int = 5) -> str:
    parts = [f"{key}{unit}: {count}" for key, count in list(counts.items())[:most]]
    return ", ".join(parts) + (f", … ({len(counts)} in all)" if len(counts) > most else "") or "none"


def _findings(problems: Mapping[str, Mapping]) -> list[str]:
    found = [(name, item) for name, item in problems.items() if item["count"]]
    return [f"  ! {item['count']:>6} {name}, e.g. {_in_words(item['findings'][0])[:100]}" for name, item in found]


def _in_words(finding: Mapping) -> str:
    clips = finding["clips"]
    if isinstance(clips, Mapping):
        clips = [f"{split} {some[0]}" for split, some in clips.items()]
    named = " = ".join(clips[:3]) + (f" = … ({len(clips)} in all)" if len(clips) > 3 else "")
    return f"{named}: {finding['detail']}" if finding["detail"] else named
