"""What training changes and how fast: groups of parameters with their learning rates, Muon, and layer-wise decay."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import Trainer

from supclap.errors import SettingsError
from supclap.training.arguments import SupClapTrainingArguments
from supclap.training.callbacks.part import check_weights_are_whole
from supclap.training.model import SupClapForContrastiveTraining
from supclap.training.towers import layer_of_parameters


class _WithoutBfloat16(TorchFunctionMode):
    """Inside, `tensor.bfloat16()` gives a copy of the type that the tensor has.

    `torch.optim.Muon` multiplies in bfloat16 whatever type the weights are of, which is slow on a processor that has no
    instructions for it.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.bfloat16:
            return args[0].clone()
        return function(*args, **(kwargs or {}))


class MuonAdamW(torch.optim.Optimizer):
    """`torch.optim.Muon` for the groups with `muon: True` and `torch.optim.AdamW` for the others, as one optimizer.

    A Trainer, a gradient scaler and a learning rate scheduler each take a single optimizer, and a checkpoint holds its
    state. The groups and the state are therefore kept here, and each of the two sees its share of them.

    Muon orthogonalizes the momentum of a weight matrix, so that every direction of the matrix learns at the same speed:
    from random weights this takes fewer steps. Its update is scaled to the size of AdamW's
    (https://arxiv.org/abs/2502.16982), so that learning rates of the same size suit both.

    Args:
        groups: Groups of parameters, each with its own `lr` and `weight_decay`; those with `muon: True` hold matrices
            only.
        bfloat16: Whether Muon multiplies in bfloat16, or in the type of the weights.
        adamw: Further arguments of `torch.optim.AdamW`.

    Raises:
        SettingsError: The installed torch has no Muon.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], bfloat16: bool = False, **adamw: Any):
        if not hasattr(torch.optim, "Muon"):
            raise SettingsError(
                f"muon_learning_rate needs torch 2.9 or newer, which has torch.optim.Muon; {torch.__version__} is "
                "installed. Install a newer one, or leave muon_learning_rate out."
            )
        super().__init__(groups, {})
        self._products = nullcontext if bfloat16 else _WithoutBfloat16
        # Both constructors fill in the defaults of the groups that they get, which are the dictionaries kept here.
        self._muon = torch.optim.Muon(self._groups(muon=True), adjust_lr_fn="match_rms_adamw")
        self._adamw = torch.optim.AdamW(self._groups(muon=False), **adamw)

    def _groups(self, muon: bool) -> list[dict[str, Any]]:
        return [group for group in self.param_groups if group.get("muon", False) == muon]

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None if closure is None else closure()
        for part, muon in ((self._muon, True), (self._adamw, False)):
            # Anew in each step, as `load_state_dict` and `add_param_group` replace what is kept here.
            part.param_groups, part.state = self._groups(muon), self.state
        with self._products():
            self._muon.step()
        self._adamw.step()
        return loss


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The trained matrices that Muon suits: of the linear layers of a dual encoder without its text encoder.

    The text encoder was pretrained with AdamW.
    """
    return [
        module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.weight.requires_grad and "text_model." not in f"{name}."
    ]


def parameter_groups(
    model: SupClapForContrastiveTraining, args: SupClapTrainingArguments, decayed: Collection[str]
) -> list[dict[str, Any]]:
    """The trained parameters in groups by the learning rate that is theirs, each with and without weight decay.

    The layout depends only on which rates are set, not on their values: two parts whose rates are equal keep groups of
    their own. A run can therefore go on at other rates, as the state of its optimizer still fits.

    Args:
        model: The model in training.
        args: Training arguments.
        decayed: Names of the parameters with weight decay.
    """
    rates = {
        "model": args.learning_rate,
        "muon": args.muon_learning_rate,
        "radius": args.radius_learning_rate,
        "text": args.text_learning_rate,
    }
    # A set of identities, as parameters compare element by element.
    matrices = set() if rates["muon"] is None else {id(parameter) for parameter in hidden_matrices(model.clap)}
    members: dict[tuple[str, bool], list[nn.Parameter]] = {
        (part, decays): [] for part, rate in rates.items() if rate is not None for decays in (True, False)
    }
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        part = "model"
        if name.startswith("criterion."):
            part = "radius"
        elif name.startswith("clap.text_model."):
            part = "text"
        elif id(parameter) in matrices:
            part = "muon"
        members[part if rates[part] is not None else "model", name in decayed].append(parameter)
    return [
        {
            "params": parameters,
            "lr": rates[part],
            "weight_decay": args.weight_decay if decays else 0.0,
            **({"muon": True} if part == "muon" else {}),
        }
        for (part, decays), parameters in members.items()
        if parameters
    ]


def choose_optimizer(trainer: Trainer, kind: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Adds Muon and the groups of parameters to the optimizer that `optim` stands for.

    Args:
        trainer: The Trainer, whose arguments say what to add.
        kind: The class of the optimizer.
        options: Its arguments. The Trainer takes the groups from `params` in them.

    Raises:
        SettingsError: The settings do not go together.
    """
    args = trainer.args
    if args.muon_learning_rate is not None:
        if kind is not torch.optim.AdamW:
            raise SettingsError(f"muon_learning_rate goes with optim adamw_torch(_fused), got {args.optim}.")
        check_weights_are_whole(trainer, "muon_learning_rate")
        kind, options = MuonAdamW, {**options, "bfloat16": bool(args.bf16)}
    # Some of the Trainer's optimizers (GaLore, LOMO, ...) bring groups of their own, or are made from the model.
    if isinstance(kind, type) and not {"params", "model", "optimizer_dict"} & options.keys():
        decayed = set(trainer.get_decay_parameter_names(trainer.model))
        return kind, {**options, "params": parameter_groups(trainer.model, args, decayed)}
    if args.text_learning_rate is not None or args.radius_learning_rate is not None:
        raise SettingsError(
            f"optim {args.optim} groups the parameters itself: leave out text_learning_rate and radius_learning_rate."
        )
    return kind, options


def layer_scales(encoder: nn.Module, decay: float) -> dict[nn.Parameter, float]:
    """The share of the learning rate that each parameter of an encoder of `n` layers gets.

    It is `decay ** (n − 1 − i)` for layer `i`, `decay ** n` for what comes before the layers (embeddings, patches,
    convolutions) and 1 for what comes after them: layers near the input hold what is general and change more slowly.

    Raises:
        SettingsError: `decay` is not in (0, 1], or the encoder has no list of layers.
    """
    if not 0 < decay <= 1:
        raise SettingsError(f"layer_decay must be above 0 and at most 1, got {decay}.")
    layers = layer_of_parameters(encoder)
    if layers is None:
        raise SettingsError(f"layer_decay: {type(encoder).__name__} has no list of layers.")
    last = encoder.config.num_hidden_layers - 1
    return {parameter: decay ** max(last - layer, 0) for parameter, layer in layers.items()}


def apply_layer_decay(optimizer: torch.optim.Optimizer, encoders: Iterable[nn.Module], decay: float) -> None:
    """Splits the groups of an optimizer so that each layer has a learning rate of its own, a share of its group's.

    Args:
        optimizer: Any optimizer whose groups have an `lr`. No scheduler may have been made for it yet.
        encoders: Encoders such as `model.audio_model` and `model.text_model`.
        decay: The rate of a layer divided by that of the layer above it.
    """
    scales = {parameter: scale for encoder in encoders for parameter, scale in layer_scales(encoder, decay).items()}
    for group in list(optimizer.param_groups):
        by_scale = defaultdict(list)
        for parameter in group["params"]:
            by_scale[scales.get(parameter, 1.0)].append(parameter)
        group["params"] = by_scale.pop(1.0, [])
        for scale, parameters in sorted(by_scale.items()):
            optimizer.add_param_group({**group, "params": parameters, "lr": scale * group["lr"]})
