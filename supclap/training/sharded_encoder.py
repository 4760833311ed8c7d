"""The model in training as an evaluation embeds with it: each process embeds its share, also where the weights are shards."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from transformers.modeling_outputs import BaseModelOutputWithPooling

from supclap.data.inspection import content_hash
from supclap.errors import name_some
from supclap.evaluation.encoders import SupClapEncoder
from supclap.training.model import SupClapForContrastiveTraining


class _Embedder(torch.nn.Module):
    """A dual encoder that embeds through the training module's own forward, where FSDP gathers the shards."""

    def __init__(self, model: SupClapForContrastiveTraining):
        super().__init__()
        self.model = model
        self.config = model.clap.config

    def get_audio_features(self, **inputs: torch.Tensor) -> BaseModelOutputWithPooling:
        return BaseModelOutputWithPooling(pooler_output=self.model(**inputs))

    get_text_features = get_audio_features


class ShardedEncoder:
    """A [`~supclap.evaluation.cache.ClipEncoder`] of the model in training. All processes call it alike and get all.

    The batches do not depend on the number of processes, so that the embeddings do not either.

    Args:
        model: The training module.
        processor: Its processor.
        batch_size: Clips, or texts, a forward pass.
        name: What results call the model.
        fingerprint: See [`~supclap.evaluation.encoders.Encoder`].
        with_contents: Whether to hash the clips; their contents are empty strings otherwise.
    """

    def __init__(
        self,
        model: SupClapForContrastiveTraining,
        processor: Callable[..., Any],
        batch_size: int,
        name: str = "training",
        fingerprint: str = "",
        with_contents: bool = False,
    ):
        self.encoder = SupClapEncoder(_Embedder(model), processor, name, fingerprint)
        self.batch_size = batch_size
        self.with_contents = with_contents

    def embed_audio(
        self, audios: Sequence[Any], names: Sequence[str], progress: Callable[[int, int], None] | None = None
    ) -> tuple[torch.Tensor, list[str]]:
        def embed(positions: range) -> list[tuple[torch.Tensor, str]]:
            clips = [audios[position] for position in positions]
            try:
                contents = [content_hash(clip) if self.with_contents else "" for clip in clips]
                return list(zip(self.encoder.embed_audio(clips, len(clips)), contents, strict=True))
            except (OSError, TypeError, ValueError) as error:
                some = name_some([names[position] for position in positions])
                raise ValueError(f"One of the clips {some} cannot be embedded: {error}") from error

        embeds, contents = zip(*self._share(len(audios), embed, progress), strict=True)
        return _unit(embeds), list(contents)

    def embed_texts(self, texts: Sequence[str], languages: Sequence[str] | None = None) -> torch.Tensor:
        def embed(positions: range) -> list[torch.Tensor]:
            own = slice(positions.start, positions.stop)
            codes = None if languages is None else languages[own]
            return list(self.encoder.embed_texts(texts[own], codes, len(positions)))

        return _unit(self._share(len(texts), embed))

    def _share(
        self, n: int, embed: Callable[[range], list[Any]], progress: Callable[[int, int], None] | None = None
    ) -> list[Any]:
        """What `embed` gives for the items 0 to n, batch by batch, from all processes and in order."""
        state = PartialState()
        starts = range(0, n, self.batch_size)
        items = []
        for turn in range(math.ceil(len(starts) / state.num_processes)):
            mine = turn * state.num_processes + state.process_index
            # Where weights are shards, every process must take part in every pass: one that has no batch left repeats the last.
            start = starts[min(mine, len(starts) - 1)]
            done = embed(range(start, min(start + self.batch_size, n)))
            items += gather_object(done if mine < len(starts) else [])
            if progress:
                progress(len(items), n)
        return items


def _unit(embeds: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.stack(list(embeds)), dim=-1)
