"""Every error that this library raises on purpose, and the helpers that word their messages.

`SupClapError` is the common base. Commands catch it and print its message in one line, without a traceback; the
message names what is wrong and what to change. Each class also derives from the built-in error that fits, so that
`except ValueError` and `except OSError` work as a caller expects.
"""

import difflib
from collections.abc import Iterable, Sequence


NAMED_ITEMS = 20
NAMED_INDICES = 5


class SupClapError(Exception):
    """The base of all errors that this library raises on purpose."""


class SettingsError(SupClapError, ValueError):
    """Settings cannot be run, either alone, together, or with the data at hand."""


class RecipeError(SettingsError):
    """A recipe cannot be run; the message names the key, the value and what is allowed."""


class DataError(SupClapError, ValueError):
    """Data cannot be used; the message names the file, row or column, and the fix."""


class MissingFileError(DataError, FileNotFoundError):
    """A file of a data set is not there, in contrast to one that is there and cannot be used."""


class SuiteError(SupClapError, ValueError):
    """A suite of evaluation tasks cannot be read."""


class DataNotFoundError(SupClapError, FileNotFoundError):
    """The data of an evaluation task are not there; the message says how to get them."""


class CompareError(SupClapError, ValueError):
    """Two evaluations cannot be compared, because they did not score the same queries."""


class NonFiniteError(SupClapError, ArithmeticError):
    """A loss or a gradient is NaN or infinite."""


class CheckpointError(SupClapError, OSError):
    """A checkpoint is not whole, or does not fit the model that should load it."""


class ConversionError(SupClapError, ValueError):
    """A published checkpoint is damaged, or is not of the kind that it should be converted from."""


class ExportError(SupClapError, ValueError):
    """A model cannot be exported, or what was exported differs from it."""


class LicenseError(SupClapError, ValueError):
    """A license is more liberal than a part of the model or its data allows."""


class PushError(SupClapError, OSError):
    """A folder could not be uploaded."""


def nearest(value: object, known: Iterable[object]) -> str | None:
    """The known name that is spelled most like `value`, or None where none is close."""
    names = [name for name in known if isinstance(name, str)]
    return next(iter(difflib.get_close_matches(str(value), names, n=1)), None)


def did_you_mean(value: object, known: Sequence[str], otherwise: str = "known keys") -> str:
    """A hint for an unknown name: the nearest known one, or the list of all of them, introduced by `otherwise`."""
    near = nearest(value, known)
    return f"did you mean {near!r}?" if near else f"{otherwise}: {', '.join(sorted(known))}."


def name_some(items: Sequence[str]) -> str:
    """The first 20 of the items, and how many more there are."""
    more = f"; … and {len(items) - NAMED_ITEMS} more" if len(items) > NAMED_ITEMS else ""
    return "; ".join(items[:NAMED_ITEMS]) + more


def name_indices(indices: Sequence[int]) -> str:
    """The first 5 of the indices, and how many more there are: `[3, 5, 8, 9, 12] and 7 more`."""
    indices = [int(index) for index in indices]
    more = f" and {len(indices) - NAMED_INDICES} more" if len(indices) > NAMED_INDICES else ""
    return f"{indices[:NAMED_INDICES]}{more}"


def in_one_line(error: BaseException) -> str:
    """The message of an error, without the traceback that a data worker adds to it."""
    text = str(error)
    if "in DataLoader worker process" in text:
        text = text.rsplit(f"{type(error).__name__}: ", 1)[-1].strip()
    return text
