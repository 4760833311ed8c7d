"""Collections of rows: in a list or made when asked for, with a note of what was left out."""

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Sequence


class Rows(list):
    """A list of rows that remembers what was left out of it: `removed` holds `{"id", "reason"}` of each."""

    def __init__(self, rows: Iterable[dict] = (), removed: Iterable[dict] = ()):
        super().__init__(rows)
        self.removed = list(removed)


class LazyRows(Sequence):
    """Rows that are made when asked for, so that a set stored as bytes need not fit in memory.

    Subclasses have `removed`, `__len__`, `__getitem__`, and the two methods below.
    """

    removed: list[dict]

    @abstractmethod
    def without_audio(self, index: int) -> dict:
        """The row but for its audio, which is not read."""

    @abstractmethod
    def select(self, indices: Sequence[int], removed: Iterable[dict]) -> "LazyRows":
        """Those of the rows, with a new note of what was left out."""

    def audio_place(self, index: int) -> tuple[tuple[str, ...], Hashable] | None:
        """The files that the audio of a row lies in, and where in them; `None` where that is not known."""
        return None


def without_audio(rows: Sequence[dict], index: int) -> dict:
    """A row of rows of any kind, for a look at all but its audio."""
    return rows.without_audio(index) if isinstance(rows, LazyRows) else rows[index]


def select(rows: Sequence[dict], indices: Sequence[int], removed: Iterable[dict]) -> "Rows | LazyRows":
    """Those of the rows, of any kind, with a note of what was left out."""
    if isinstance(rows, LazyRows):
        return rows.select(indices, removed)
    return Rows((rows[index] for index in indices), removed)


def removed_of(rows) -> list[dict]:
    """What was left out of rows of any kind."""
    return list(getattr(rows, "removed", ()))
