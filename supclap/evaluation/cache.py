"""Embeddings that were computed once: kept in one SQLite file by what they depend on, encoder and content.

A file that moved is found again, a file that changed is not, and an evaluation that was stopped goes on where it was.
"""

import hashlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from supclap.data.inspection import content_hash
from supclap.evaluation.encoders import Encoder


# Batches between two writes to the disk: what a kill can lose.
_BATCHES_PER_WRITE = 8
# SQLite takes so many variables in one statement on every version.
_KEYS_PER_QUERY = 900


def text_hash(text: str, language: str | None = None) -> str:
    """Hash of a text and its language."""
    return hashlib.blake2b(f"{language or ''}\x1f{text}".encode(), digest_size=16).hexdigest()


class EmbeddingCache:
    """A file of embeddings by (encoder, kind, content).

    Args:
        path: The file; made when it does not exist.

    Raises:
        ValueError: The file is something else.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with closing(self._connect()) as connection, connection:
                connection.execute("CREATE TABLE IF NOT EXISTS embeddings (key TEXT PRIMARY KEY, value BLOB NOT NULL)")
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{str(self.path)!r} is no cache of embeddings ({error}): move it away.") from error

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=60)

    def get(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """The float32 vectors of those keys that are there."""
        found = {}
        with closing(self._connect()) as connection:
            for start in range(0, len(keys), _KEYS_PER_QUERY):
                some = keys[start : start + _KEYS_PER_QUERY]
                marks = ",".join("?" * len(some))
                query = connection.execute(f"SELECT key, value FROM embeddings WHERE key IN ({marks})", list(some))
                found |= {key: np.frombuffer(value, dtype="<f4") for key, value in query}
        return found

    def put(self, vectors: Mapping[str, np.ndarray]) -> None:
        """Writes vectors, all or none of them."""
        rows = [(key, np.asarray(vector, dtype="<f4").tobytes()) for key, vector in vectors.items()]
        with closing(self._connect()) as connection, connection:
            connection.executemany("INSERT OR REPLACE INTO embeddings VALUES (?, ?)", rows)


class ClipEncoder(Protocol):
    """What an evaluation embeds with: an encoder, and a way to have it embed all clips and texts of a set in batches."""

    encoder: Encoder
    batch_size: int

    def embed_audio(
        self, audios: Sequence[Any], names: Sequence[str], progress: Callable[[int, int], None] | None = None
    ) -> tuple[torch.Tensor, list[str]]:
        """Unit-length embeddings `(N, D)` of clips, and the hash of the content of each; see [`CachedEncoder`]."""
        ...

    def embed_texts(self, texts: Sequence[str], languages: Sequence[str] | None = None) -> torch.Tensor:
        """Unit-length embeddings `(N, D)` of texts, with one language code a text where known."""
        ...


class CachedEncoder:
    """Embeds each distinct content once.

    Args:
        encoder: What embeds.
        cache: Where embeddings are kept.
        batch_size: Clips, or texts, a forward pass.
    """

    def __init__(self, encoder: Encoder, cache: EmbeddingCache, batch_size: int = 32):
        self.encoder, self.cache, self.batch_size = encoder, cache, batch_size
        self.computed = 0

    def embed_audio(
        self,
        audios: Sequence[Any],
        names: Sequence[str],
        progress: Callable[[int, int], None] | None = None,
    ) -> tuple[torch.Tensor, list[str]]:
        """Unit-length embeddings `(N, D)` of clips, and the hash of each clip's content.

        Args:
            audios: Clips; each is read when it is needed.
            names: What messages call them.
            progress: Called with the clips done and all clips.

        Raises:
            ValueError: A clip cannot be embedded; it is named.
        """
        hashes = []
        for position in range(len(audios)):
            try:
                hashes.append(content_hash(audios[position]))
            except (OSError, TypeError) as error:
                raise ValueError(f"Clip {names[position]!r}: {error}") from error

        def compute(positions: list[int]) -> torch.Tensor:
            clips = [audios[position] for position in positions]
            try:
                return self.encoder.embed_audio(clips, self.batch_size)
            except (OSError, TypeError, ValueError):
                for position, clip in zip(positions, clips, strict=True):  # which of them was it?
                    try:
                        self.encoder.embed_audio([clip], 1)
                    except (OSError, TypeError, ValueError) as error:
                        raise ValueError(f"Clip {names[position]!r} cannot be embedded: {error}") from error
                raise

        return self._embed("audio", hashes, compute, progress), hashes

    def embed_texts(self, texts: Sequence[str], languages: Sequence[str] | None = None) -> torch.Tensor:
        """Unit-length embeddings `(N, D)` of texts, with one language code a text where known."""
        codes = [None] * len(texts) if languages is None else list(languages)
        hashes = [text_hash(text, code) for text, code in zip(texts, codes, strict=True)]

        def compute(positions: list[int]) -> torch.Tensor:
            some = None if languages is None else [codes[position] for position in positions]
            return self.encoder.embed_texts([texts[position] for position in positions], some, self.batch_size)

        return self._embed("text", hashes, compute, None)

    def _embed(
        self,
        kind: str,
        hashes: Sequence[str],
        compute: Callable[[list[int]], torch.Tensor],
        progress: Callable[[int, int], None] | None,
    ) -> torch.Tensor:
        if not hashes:
            raise ValueError(f"No {kind} to embed.")
        keys = [f"{self.encoder.fingerprint}/{kind}/{content}" for content in hashes]
        vectors = self.cache.get(list(dict.fromkeys(keys)))
        first = {key: position for position, key in reversed(list(enumerate(keys)))}
        missing = [position for key, position in sorted(first.items(), key=lambda item: item[1]) if key not in vectors]
        chunk = self.batch_size * _BATCHES_PER_WRITE
        for start in range(0, len(missing), chunk):
            if progress:
                progress(len(hashes) - len(missing) + start, len(hashes))
            positions = missing[start : start + chunk]
            embeds = compute(positions)
            if embeds.ndim != 2 or len(embeds) != len(positions) or not torch.isfinite(embeds).all():
                raise ValueError(
                    f"The encoder {self.encoder.name!r} gave {tuple(embeds.shape)} for {len(positions)} items of "
                    f"{kind}, or values that are not finite: one finite row each is needed."
                )
            unit = torch.nn.functional.normalize(embeds.detach().float().cpu(), dim=-1).numpy()
            new = {keys[position]: unit[row] for row, position in enumerate(positions)}
            self.cache.put(new)
            vectors |= new
            self.computed += len(new)
        if progress:
            progress(len(hashes), len(hashes))
        return torch.from_numpy(np.stack([vectors[key] for key in keys]))
