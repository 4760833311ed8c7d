"""AdamW that updates chosen weight matrices with Muon."""

from collections.abc import Callable

import torch
from torch import nn


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # https://kellerjordan.github.io/posts/muon/


def orthogonalize(matrices: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """The nearest matrices with orthonormal rows or columns, approximately: singular values of 0.7 to 1.2.

    Args:
        matrices: `(n, rows, columns)`, each scaled as it may be.
        steps: Newton-Schulz iterations.
    """
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.transpose(-2, -1) if tall else matrices
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(-2, -1)
        gram = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, gram, x, beta=a)
    return x.transpose(-2, -1) if tall else x


class MuonAdamW(torch.optim.AdamW):
    """AdamW, but for the groups with `muon=True`: their momentum is orthogonalised before each step.

    Every direction of a weight matrix then learns at the same speed, which takes fewer steps from random weights. The
    step is scaled to the size that AdamW's has, so that both take the same learning rate.
    """

    def __init__(self, params, muon_momentum: float = 0.95, muon_dtype: torch.dtype = torch.float32, **kwargs):
        super().__init__(params, **kwargs)
        self.muon_momentum = muon_momentum
        self.muon_dtype = muon_dtype  # of the products alone
        self._step_supports_amp_scaling = False  # of a fused AdamW, which would unscale its own gradients alone

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None):
        groups = self.param_groups
        for group in groups:
            if group.get("muon"):
                self._muon_step(group)
        self.param_groups = [group for group in groups if not group.get("muon")]
        try:
            return super().step(closure)
        finally:
            self.param_groups = groups

    def _muon_step(self, group: dict) -> None:
        by_shape: dict[torch.Size, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            if parameter.grad is not None:
                by_shape.setdefault(parameter.shape, []).append(parameter)
        for shape, parameters in by_shape.items():
            looked_ahead = []
            for parameter in parameters:
                state = self.state[parameter]
                if not state:  # AdamW expects a step where it finds a state
                    state.update(step=torch.zeros(()), momentum=torch.zeros_like(parameter))
                state["step"] += 1
                momentum = state["momentum"].lerp_(parameter.grad, 1 - self.muon_momentum)
                looked_ahead.append(parameter.grad.lerp(momentum, self.muon_momentum))
            rate = group["lr"]
            size = 0.2 * max(shape) ** 0.5  # the RMS of a usual AdamW step, https://arxiv.org/abs/2502.16982
            for parameter, update in zip(
                parameters, orthogonalize(torch.stack(looked_ahead).to(self.muon_dtype)), strict=True
            ):
                parameter.mul_(1 - rate * group["weight_decay"]).add_(update, alpha=-rate * size)


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The trained matrices of linear layers of a dual encoder, outside of its text encoder, pretrained with AdamW."""
    return [
        module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.weight.requires_grad and "text_model." not in f"{name}."
    ]


def use_muon(optimizer: MuonAdamW, parameters: list[nn.Parameter], learning_rate: float) -> None:
    """Moves weight matrices from their groups to ones that Muon updates, with a learning rate of their own."""
    chosen = {id(parameter) for parameter in parameters}
    for group in list(optimizer.param_groups):
        moved = [parameter for parameter in group["params"] if id(parameter) in chosen]
        if moved:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in chosen]
            decay = group["weight_decay"]
            optimizer.add_param_group({"params": moved, "lr": learning_rate, "weight_decay": decay, "muon": True})
