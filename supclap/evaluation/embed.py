"""Embed many clips or texts with a dual encoder: batched, without gradients, in input order."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from supclap.errors import name_indices


_INPUT_ERRORS = (FileNotFoundError, TypeError, ValueError)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode inside, then each module's own mode again: a batch norm kept frozen in training stays frozen."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _audio_size(audio: Any) -> int:
    """What orders clips by length without decoding them: samples of an array, bytes of a file; 0 if unknown."""
    if isinstance(audio, Mapping):
        known = [audio[key] for key in ("array", "raw", "bytes", "path") if audio.get(key) is not None]
        return _audio_size(known[0]) if known else 0
    if isinstance(audio, (str, os.PathLike)):
        return os.path.getsize(audio) if os.path.isfile(audio) else 0
    if hasattr(audio, "shape"):
        return max(audio.shape, default=0)
    return len(audio) if hasattr(audio, "__len__") else 0


def _embed(
    model: nn.Module,
    embed_batch: Callable[[list[int]], torch.Tensor],
    sizes: list[int],
    batch_size: int,
    device: torch.device | str | None,
    name: str,
) -> torch.Tensor:
    """Embed the items `0..len(sizes)` in batches of like size, longest first, and return them in input order."""
    if not sizes:
        raise ValueError(f"`{name}` is empty: there is nothing to embed.")
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be at least 1, got {batch_size}.")
    if device is not None:
        model.to(device)
    order = sorted(range(len(sizes)), key=lambda item: -sizes[item])
    batches = []
    with torch.no_grad(), evaluation_mode(model):
        for start in range(0, len(order), batch_size):
            items = order[start : start + batch_size]
            try:
                batches.append(embed_batch(items).float().cpu())
            except _INPUT_ERRORS as error:  # what it names is a position in the batch
                kind = next(kind for kind in _INPUT_ERRORS if isinstance(error, kind))
                raise kind(f"In the batch of `{name}` {items}, in this order: {error}") from error
    sorted_embeds = torch.cat(batches)
    embeds = torch.empty_like(sorted_embeds)
    embeds[torch.tensor(order)] = sorted_embeds
    bad = (~torch.isfinite(embeds)).any(dim=1).nonzero().flatten().tolist()
    if bad:
        raise ValueError(f"The model gave NaN or infinite embeddings for `{name}` {name_indices(bad)}.")
    return embeds


def _check_is_list(items: Any, name: str) -> None:
    """A string or one array would be taken apart into characters or samples."""
    if isinstance(items, (str, bytes, Mapping)) or hasattr(items, "shape"):
        raise TypeError(f"`{name}` must be a list with one entry per item, got a {type(items).__name__}.")


def _to_model(inputs: Mapping[str, torch.Tensor], model: nn.Module) -> dict[str, torch.Tensor]:
    device = next(model.parameters()).device
    return {key: value.to(device) for key, value in inputs.items()}


def embed_audio(
    model: nn.Module,
    processor: Callable[..., Mapping[str, torch.Tensor]],
    audios: Sequence[Any],
    batch_size: int = 32,
    device: torch.device | str | None = None,
    sampling_rate: int | None = None,
) -> torch.Tensor:
    """Embed clips with `model.get_audio_features(**processor(audio=...))`.

    Args:
        model: Dual encoder whose `get_audio_features` returns an output with `pooler_output` `(B, D)`. Its
            training modes are as before afterwards.
        processor: Called with `audio` (a list), `return_tensors="pt"` and, for bare arrays, `sampling_rate`.
        audios: Clips of any kind the processor takes; files are decoded one batch at a time.
        batch_size: Clips a forward pass.
        device: Where to move the model; None leaves it where it is. Inputs follow the model.
        sampling_rate: Rate in Hz of clips given as bare arrays.

    Returns:
        `(N, D)` float32 on the CPU, in the order of `audios`.

    Raises:
        TypeError: A single clip instead of a list.
        ValueError: No clips, or embeddings that are not finite; the clips are named.
    """
    _check_is_list(audios, "audios")
    rate = {} if sampling_rate is None else {"sampling_rate": sampling_rate}

    def embed_batch(items: list[int]) -> torch.Tensor:
        inputs = processor(audio=[audios[item] for item in items], return_tensors="pt", **rate)
        return model.get_audio_features(**_to_model(inputs, model)).pooler_output

    return _embed(model, embed_batch, [_audio_size(audio) for audio in audios], batch_size, device, "audios")


def embed_texts(
    model: nn.Module,
    processor: Callable[..., Mapping[str, torch.Tensor]],
    texts: Sequence[str],
    batch_size: int = 64,
    device: torch.device | str | None = None,
    text_lang: str | Sequence[str] | None = None,
) -> torch.Tensor:
    """Embed texts with `model.get_text_features(**processor(text=...))`.

    Args:
        model: Dual encoder whose `get_text_features` returns an output with `pooler_output` `(B, D)`. Its
            training modes are as before afterwards.
        processor: Called with `text` (a list), `return_tensors="pt"` and, when given, `text_lang`; pads and truncates.
        texts: Captions or prompts.
        batch_size: Texts a forward pass.
        device: Where to move the model; None leaves it where it is. Inputs follow the model.
        text_lang: For multilingual encoders, one language code per text or one for all.

    Returns:
        `(N, D)` float32 on the CPU, in the order of `texts`.

    Raises:
        TypeError: A single string instead of a list, or entries that are not strings.
        ValueError: No texts, blank texts, a number of languages that differs, or embeddings that are not finite.
    """
    _check_is_list(texts, "texts")
    not_text = [item for item, text in enumerate(texts) if not isinstance(text, str)]
    if not_text:
        raise TypeError(f"`texts` {name_indices(not_text)} are not strings.")
    blank = [item for item, text in enumerate(texts) if not text.strip()]
    if blank:
        raise ValueError(f"`texts` {name_indices(blank)} are empty: leave them out.")
    per_text = text_lang is not None and not isinstance(text_lang, str)
    if per_text and len(text_lang) != len(texts):
        raise ValueError(f"Got {len(texts)} texts and {len(text_lang)} languages: give one for all or one per text.")

    def embed_batch(items: list[int]) -> torch.Tensor:
        language = {} if text_lang is None else {"text_lang": text_lang}
        if per_text:
            language = {"text_lang": [text_lang[item] for item in items]}
        inputs = processor(text=[texts[item] for item in items], return_tensors="pt", **language)
        return model.get_text_features(**_to_model(inputs, model)).pooler_output

    return _embed(model, embed_batch, [len(text) for text in texts], batch_size, device, "texts")
