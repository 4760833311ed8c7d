"""The module that the Trainer, DDP and FSDP train: a dual encoder together with its objective."""

from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm

from modeling_supclap import SupClapPreTrainedModel
from supclap.errors import SettingsError
from supclap.losses import SupClapLoss
from supclap.losses.grad_cache import embed_in_micro_batches
from supclap.training.text_cache import FrozenTextCache
from supclap.training.towers import (
    TEXT_INPUTS,
    check_dual_encoder,
    embed_other,
    embed_text,
    limit_logit_scale,
    logit_scale,
)


CRITERION_WEIGHTS = "_svr_criterion.safetensors"


def mean_cosine(embeds: torch.Tensor) -> torch.Tensor:
    """Mean cosine between different rows of unit-length `(B, D)` embeddings, detached; 0 for a single row."""
    embeds = embeds.detach().float()
    pairs = max(len(embeds) * (len(embeds) - 1), 1)
    return (embeds.sum(0).square().sum() - embeds.square().sum()) / pairs


def _split(inputs: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Inputs of the text tower, and those of the other one."""
    text = {name: value for name, value in inputs.items() if name in TEXT_INPUTS}
    return text, {name: value for name, value in inputs.items() if name not in TEXT_INPUTS}


class SupClapForContrastiveTraining(SupClapPreTrainedModel):
    """A dual encoder and a [`~supclap.losses.SupClapLoss`] as one module, so that the radius is trained, sharded
    and resumed with the model while inference weights never hold it.

    Args:
        clap: The model to train: a [`SupClapModel`], or another that `check_dual_encoder` accepts.
        criterion: The objective.
        micro_batch_size: Rows that are embedded at a time, with
            [`~supclap.losses.grad_cache.embed_in_micro_batches`]; the whole batch when `None`.
    """

    accepts_loss_kwargs = False
    main_input_name = "input_features"

    def __init__(self, clap: torch.nn.Module, criterion: SupClapLoss, micro_batch_size: int | None = None):
        check_dual_encoder(clap)
        super().__init__(clap.config)
        self.micro_batch_size = micro_batch_size
        self.clap = clap
        self.criterion = criterion
        # The embeddings have unit length by construction, and the Trainer decides what to do about NaN, also in the first
        # step: the objective need not check either.
        criterion.checked_values = True
        self.text_cache: FrozenTextCache | None = None
        present = {type(module).__name__ for module in clap.modules()}
        names = clap._no_split_modules or ()
        self._no_split_modules = {name for name in names if name in present and not name.endswith("Embeddings")}
        tied = getattr(clap, "all_tied_weights_keys", None) or {}
        # `post_init`, which other models call here, would initialize the trained weights again.
        self.all_tied_weights_keys = {f"clap.{key}": f"clap.{value}" for key, value in tied.items()}

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.clap.get_input_embeddings()

    def train(self, mode: bool = True):
        super().train(mode)
        for module in self.clap.modules():
            parameters = list(module.parameters())
            if parameters and not any(parameter.requires_grad for parameter in parameters):
                module.eval()  # dropout in frozen layers would only add noise, and take time
            if self.micro_batch_size is not None and isinstance(module, _BatchNorm):
                module.eval()  # it would count each sample twice, in statistics of micro-batches
        return self

    def forward(
        self, clip_ids: torch.Tensor | None = None, **inputs: torch.Tensor
    ) -> dict[str, torch.Tensor] | torch.Tensor:
        """The objective on a batch of pairs; with inputs of one encoder only, their embeddings `(batch, D)`.

        Args:
            clip_ids: Integers `(batch,)`, equal for pairs that are not negatives of each other.
            inputs: Inputs of both encoders.

        Returns:
            `loss`, the detached parts and diagnostics of [`~supclap.losses.ContrastiveLossOutput`], and `audio_cosine`
            and `text_cosine`, the mean cosine between different rows of this rank: near 1 in a collapsed tower.
        """
        text, other = _split(inputs)
        if not text:
            return embed_other(self.clap, **other)
        if not other:
            return embed_text(self.clap, **text)
        limit_logit_scale(self.clap)
        audio_embeds, text_embeds = self.embed(inputs)
        bias = getattr(self.clap, "logit_bias", None)
        output = self.criterion(audio_embeds, text_embeds, logit_scale(self.clap), logit_bias=bias, ids=clip_ids)
        cosines = {"audio_cosine": mean_cosine(audio_embeds), "text_cosine": mean_cosine(text_embeds)}
        return {"loss": output.loss, **output.parts, **output.diagnostics, **cosines}

    def embed(self, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Unit-length embeddings `(batch, dim)` of the audios (or images) and of the texts of a batch."""
        text, other = _split(inputs)
        text_embeds = self._embed(embed_text, text) if self.text_cache is None else self.text_cache.embed(text)
        return self._embed(embed_other, other), text_embeds

    def _embed(self, embed, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        if self.micro_batch_size is None or not torch.is_grad_enabled():
            return embed(self.clap, **inputs)
        return embed_in_micro_batches(partial(embed, self.clap), inputs, self.micro_batch_size)

    def save_pretrained(self, save_directory, state_dict=None, is_main_process: bool = True, **kwargs) -> None:
        """Saves the model as a standard checkpoint and the radius beside it."""
        state_dict = self.state_dict() if state_dict is None else state_dict
        clap = {key.removeprefix("clap."): value for key, value in state_dict.items() if key.startswith("clap.")}
        self.clap.save_pretrained(save_directory, state_dict=clap, is_main_process=is_main_process, **kwargs)
        criterion = {
            key.removeprefix("criterion."): value.detach().cpu().contiguous()
            for key, value in state_dict.items()
            if key.startswith("criterion.")
        }
        if is_main_process and criterion:
            save_file(criterion, Path(save_directory) / CRITERION_WEIGHTS)

    def load_checkpoint(self, folder: str | Path) -> None:
        """Loads weights that `save_pretrained` wrote, strictly.

        Raises:
            SettingsError: The radius in the folder was trained with another objective or batch size.
        """
        folder = Path(folder)
        weights = type(self.clap).from_pretrained(folder, config=self.clap.config).state_dict()
        state = {f"clap.{name}": value for name, value in weights.items()}
        criterion = folder / CRITERION_WEIGHTS
        if criterion.exists():
            state |= {f"criterion.{name}": value for name, value in load_file(criterion).items()}
        try:
            if any(isinstance(value, DTensor) for value in self.parameters()):  # shards of FSDP
                set_model_state_dict(self, state, options=StateDictOptions(full_state_dict=True))
            else:
                self.load_state_dict(state)
        except RuntimeError as error:
            raise SettingsError(
                f"{folder} was trained with another objective or another number of pairs per step than this run, and "
                f"cannot be resumed with these settings; set a new output_dir or restore them. {error}"
            ) from None
