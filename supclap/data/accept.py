"""Which rows are accepted: those with audio and captions; the others are an error, or left out and noted."""

from collections.abc import Iterable

from supclap.errors import DataError, name_some

from .dataset import check_row
from .rows import LazyRows, Rows


SKIP = "Repair them, or leave them out with skip_bad: true; they are then counted and listed in the manifest."


def clean_captions(captions) -> list:
    """Captions without white space around or in excess inside; what is no text stays as it is, to be refused."""
    return [" ".join(caption.split()) if isinstance(caption, str) else caption for caption in captions]


def as_they_are(rows: Iterable[dict] | LazyRows) -> Rows | LazyRows:
    """Rows for a look at them, nothing left out or refused; `audio` is `None` where it is missing."""
    if isinstance(rows, LazyRows):
        return rows
    return Rows({"audio": None, **row, "captions": clean_captions(row.get("captions", []))} for row in rows)


def accept_rows(rows: Iterable[dict], where: str, folder: str, skip_bad: bool) -> Rows:
    """Checks rows of a loader, which carry the name of their audio in `file` and `None` in `audio` where it is missing.

    Args:
        rows: The rows.
        where: What messages call them.
        folder: Where the audio was looked for.
        skip_bad: Whether rows that cannot be used are left out and noted, rather than an error.

    Raises:
        DataError: No rows, two rows of one id, or rows that cannot be used; the first 20 are named, and the count.
    """
    accepted, missing, broken, removed = [], [], [], []
    seen: dict[str, int] = {}
    count = 0
    for index, row in enumerate(rows):
        count += 1
        row = {key: value for key, value in row.items() if value is not None}
        file = row.pop("file", None)
        row["captions"] = clean_captions(row.get("captions", []))
        if seen.setdefault(row["id"], index) != index:
            raise DataError(f"{where}: rows {seen[row['id']]} and {index} have the same id {row['id']!r}.")
        reason = None
        if "audio" not in row:
            reason = f"no audio file {file!r}"
            missing.append(f"row {index} (id {row['id']!r}): {file!r}")
        else:
            try:
                check_row(row, index)
            except ValueError as error:
                reason = str(error)
                broken.append(reason.rstrip("."))
        if reason:
            removed.append({"id": row["id"], "reason": reason})
        else:
            accepted.append(row)
    if not count:
        raise DataError(f"{where}: no rows.")
    if removed and not accepted:
        raise DataError(
            f"{where}: none of the {count} clips can be used; the first: {removed[0]['reason']}. Audio was looked for "
            f"under {folder!r}."
        )
    if missing and not skip_bad:
        raise DataError(
            f"{where}: {len(missing)} of {count} audio files are missing under {folder!r}: {name_some(missing)}. Get "
            "them, or leave their rows out with skip_bad: true; they are then counted and listed in the manifest."
        )
    if broken and not skip_bad:
        raise DataError(f"{where}: {len(broken)} of {count} rows cannot be used: {name_some(broken)}. {SKIP}")
    return Rows(accepted, removed)


def accept_lazy(rows: LazyRows, where: str, skip_bad: bool) -> LazyRows:
    """Checks all of rows but their audio, as [`accept_rows`] does."""
    kept, bad = [], []
    for index in range(len(rows)):
        row = rows.without_audio(index)
        try:
            check_row(row | {"audio": ""}, index)
            kept.append(index)
        except ValueError as error:
            bad.append({"id": row.get("id"), "reason": str(error)})
    if bad and (not skip_bad or not kept):
        raise DataError(
            f"{where}: {len(bad)} of {len(rows)} rows cannot be used: "
            f"{name_some([item['reason'].rstrip('.') for item in bad])}. {SKIP}"
        )
    return rows.select(kept, [*rows.removed, *bad]) if bad else rows
