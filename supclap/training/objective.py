"""The objective that training arguments describe, and its base loss for evaluation."""

from inspect import signature

import torch
from torch import Tensor

from supclap.losses import PaperReadings, SupClapLoss
from supclap.training.arguments import SupClapTrainingArguments, own_fields


def build_criterion(args: SupClapTrainingArguments, loss: type[SupClapLoss] = SupClapLoss, **options) -> SupClapLoss:
    """The objective that the arguments ask for, for the number of pairs of one step on all ranks.

    Args:
        args: Training arguments; those of the objective have the names that [`~supclap.losses.SupClapLoss`] gives them.
        loss: Class of the objective; a subclass for an objective of your own.
        options: What a subclass takes beyond that.
    """
    own = {name: getattr(args, name) for name in signature(SupClapLoss).parameters.keys() & own_fields().keys()}
    own |= {"batch_size": args.train_batch_size * args.world_size, "readings": PaperReadings(**(args.readings or {}))}
    return loss(**own, **options)


def base_loss(
    objective: str, audio: Tensor, text: Tensor, logit_scale: Tensor, logit_bias: Tensor | None, pool_size: int
) -> float:
    """The loss without support vectors, averaged over pools of pairs: what `eval_loss` is.

    Args:
        objective: "infonce" or "siglip".
        audio, text: Embeddings `(n, D)` of the pairs.
        logit_scale: 1/temperature.
        logit_bias: Bias of the sigmoid loss.
        pool_size: Pairs that are contrasted with each other; a last, smaller pool is left out.
    """
    plain = SupClapLoss(objective, svr=None, gather=False).eval()
    pools = zip(audio.float().split(pool_size), text.float().split(pool_size), strict=True)
    losses = [plain(*pair, logit_scale, logit_bias).loss for pair in pools if len(pair[0]) == pool_size]
    return torch.stack(losses).mean().item()
