"""What a frozen text tower makes of each training caption, computed once in place of once an epoch."""

from collections.abc import Iterable

import torch

from modeling_supclap import SupClapModel
from supclap.errors import SettingsError
from supclap.evaluation.embed import embed_texts


class FrozenTextCache:
    """Pooled outputs of the frozen text tower, by the tokens of the text; its projection is computed, as it is trained.

    A text that is not in it is computed when it comes and not kept: what a step computes depends on its batch and on
    `fill` alone, so that a resumed run repeats it exactly.

    Args:
        model: A model whose text tower has no trained parameters.

    Raises:
        ValueError: Parts of the text tower are trained.
    """

    def __init__(self, model: SupClapModel):
        if any(parameter.requires_grad for parameter in model.text_model.parameters()):
            raise SettingsError("cache_frozen_text needs a text tower that is not trained: set freeze_text: true.")
        self.model = model
        self.pooled: dict[bytes, torch.Tensor] = {}

    def fill(self, processor, texts: Iterable[str], batch_size: int = 64) -> None:
        """Computes the pooled outputs of texts, each once."""
        texts = sorted(set(texts))
        seen: list[tuple[list[bytes], torch.Tensor]] = []

        class Recorder(torch.nn.Module):
            def __init__(self, model):
                super().__init__()
                self.model = model

            def get_text_features(recorder, **inputs):
                output, pooled = self._encode(inputs)
                seen.append((_keys(inputs), pooled))
                return output

        embed_texts(Recorder(self.model), processor, texts, batch_size)
        self.pooled |= {key: value for keys, pooled in seen for key, value in zip(keys, pooled, strict=True)}

    def _encode(self, inputs: dict[str, torch.Tensor]):
        """The model's output for texts, and what went into its projection."""
        captured: list[torch.Tensor] = []
        hook = self.model.text_projection.register_forward_pre_hook(lambda _, args: captured.append(args[0].detach()))
        try:
            output = self.model.get_text_features(**inputs)
        finally:
            hook.remove()
        return output, captured[0]

    def embed(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Joint embeddings `(batch, D)` of tokenised texts, with gradients for the projection."""
        keys = _keys(inputs)
        missing = [row for row, key in enumerate(keys) if key not in self.pooled]
        found: dict[bytes, torch.Tensor] = {}
        if missing:
            with torch.no_grad():
                _, pooled = self._encode({name: value[missing] for name, value in inputs.items()})
            found = {keys[row]: value for row, value in zip(missing, pooled, strict=True)}
        pooled = torch.stack([found[key] if key in found else self.pooled[key] for key in keys])
        pooled = pooled.to(next(self.model.text_projection.parameters()).device)
        return torch.nn.functional.normalize(self.model.text_projection(pooled).float(), dim=-1)


def _keys(inputs: dict[str, torch.Tensor]) -> list[bytes]:
    """The tokens of each text without padding."""
    ids, masks = inputs["input_ids"].cpu(), inputs["attention_mask"].cpu().bool()
    return [row[mask].numpy().tobytes() for row, mask in zip(ids, masks, strict=True)]
