"""`supclap data check`: reads all of a data set in parallel and reports what is in it and what is wrong with it."""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from .captions import caption_languages
from .inspection import ClipFacts, inspect_clip, map_rows


EXAMPLES = 20


class Findings:
    """A kind of problem: how many, and the first 20 of them."""

    def __init__(self, items: Iterable[str]):
        self.items = list(items)

    def to_dict(self) -> dict:
        return {"count": len(self.items), "first": self.items[:EXAMPLES]}


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
        problems found in it; `between_splits`: what occurs in two of them; `n_problems`: how many findings there are.
    """
    facts = {name: _inspect(name, rows, progress, workers) for name, rows in splits.items()}
    report = {"splits": {name: _describe(looked) for name, looked in facts.items()}}
    report["between_splits"] = {name: Findings(items).to_dict() for name, items in _leaks(facts).items()}
    findings = [*report["between_splits"].values()]
    findings += [item for split in report["splits"].values() for item in split["problems"].values()]
    report["n_problems"] = sum(item["count"] for item in findings)
    return report


def _inspect(
    name: str, rows: Sequence[dict], progress: bool, workers: int | None
) -> list[tuple[dict, ClipFacts | None]]:
    def look(row: dict) -> tuple[dict, ClipFacts | None]:
        audio = row.get("audio")
        facts = None if audio is None else inspect_clip(audio, f"clip {row.get('id')!r}")
        return {key: value for key, value in row.items() if key != "audio"}, facts

    return list(map_rows(look, rows, f"reading {name}" if progress else None, workers))


def _describe(looked: Sequence[tuple[dict, ClipFacts | None]]) -> dict:
    read = [facts for _, facts in looked if facts is not None and facts.error is None]
    durations = np.array([facts.duration for facts in read]) if read else np.zeros(1)
    captions = [(row, caption) for row, _ in looked for caption in row.get("captions") or []]
    texts = [caption for _, caption in captions if isinstance(caption, str) and caption.strip()]
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
        "problems": {name: Findings(items).to_dict() for name, items in _problems(looked).items()},
    }


def _quantiles(values: np.ndarray) -> dict[str, float]:
    low, median, high = np.quantile(values, [0, 0.5, 1])
    return {"shortest": float(low), "median": float(median), "longest": float(high), "mean": float(values.mean())}


def _problems(looked: Sequence[tuple[dict, ClipFacts | None]]) -> dict[str, list[str]]:
    problems: dict[str, list[str]] = {
        name: []
        for name in (
            "missing files",
            "unreadable audio",
            "silent audio",
            "clipped audio",
            "mostly zeros",
            "duplicate audio",
            "clips without captions",
            "captions empty or no text",
            "duplicate captions",
        )
    }
    by_audio: dict[str, list[str]] = defaultdict(list)
    by_caption: dict[str, dict[str, None]] = defaultdict(dict)
    for row, facts in looked:
        clip = str(row.get("id"))
        if facts is None:
            problems["missing files"].append(f"{clip}: {row.get('file')!r}")
        elif facts.error:
            problems["unreadable audio"].append(facts.error)
        else:
            by_audio[facts.audio_hash].append(clip)
            if facts.is_silent:
                problems["silent audio"].append(clip)
            elif facts.zeros > 0.3:
                problems["mostly zeros"].append(f"{clip}: {facts.zeros:.0%}")
            if facts.is_clipped:
                problems["clipped audio"].append(f"{clip}: {facts.clipped:.2%} of its samples")
        captions = row.get("captions") or []
        if not captions:
            problems["clips without captions"].append(clip)
        for caption in captions:
            if not isinstance(caption, str) or not any(map(str.isalnum, caption)):
                problems["captions empty or no text"].append(f"{clip}: {caption!r}")
            elif row.get("group") is None:  # the captions of a class are meant to be alike
                by_caption[" ".join(caption.casefold().split()).rstrip(".")][clip] = None
    problems["duplicate audio"] = [" = ".join(clips) for clips in by_audio.values() if len(clips) > 1]
    problems["duplicate captions"] = [
        f"{caption!r}: {len(clips)} clips ({', '.join(list(clips)[:3])}{', …' if len(clips) > 3 else ''})"
        for caption, clips in by_caption.items()
        if len(clips) > 1
    ]
    return problems


def _leaks(facts: Mapping[str, Sequence[tuple[dict, ClipFacts | None]]]) -> dict[str, list[str]]:
    """Clips that two splits share: by id, by recording, and by the samples of their audio."""
    keys = {
        "same id": lambda row, fact: row.get("id"),
        "same recording": lambda row, fact: row.get("recording"),
        "same audio": lambda row, fact: fact.audio_hash if fact is not None and not fact.error else None,
    }
    leaks = {}
    for name, key in keys.items():
        where: dict[str, dict[str, str]] = defaultdict(dict)
        for split, looked in facts.items():
            for row, fact in looked:
                if (value := key(row, fact)) is not None:
                    where[value].setdefault(split, str(row.get("id")))
        leaks[name] = [
            " = ".join(f"{split} {clip}" for split, clip in found.items())
            for found in where.values()
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
    return [f"  ! {item['count']:>6} {name}, e.g. {item['first'][0][:100]}" for name, item in found]


def refused(report: Mapping) -> int:
    """How many clips or captions training would refuse."""
    kinds = ("missing files", "unreadable audio", "clips without captions", "captions empty or no text")
    return sum(split["problems"][kind]["count"] for split in report["splits"].values() for kind in kinds)
