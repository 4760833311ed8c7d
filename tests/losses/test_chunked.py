"""The chunked form of every objective against the form with all rows at once, in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from supclap.losses import PaperReadings, SupClapLoss
from support.builders import unit


B, D = 8, 6
IDS = torch.tensor([0, 1, 0, 2, 3, 1, 0, 4])
OPTIONS = {
    "plain": {"svr": None},
    **{
        f"{direction}-{svr}": {"svr": svr, "svr_direction": direction, "batch_size": B}
        for svr in ("static", "dynamic")
        for direction in ("uni", "bi")
    },
    "summary": {"radius_predictor": "summary"},
    "clamped": {"batch_size": B, "clamp_radius": True},
    "normalized": {"svr": "static", "readings": PaperReadings(normalize_support=True)},
    "padded": {"batch_size": B + 3, "on_batch_mismatch": "pad"},
}


def values_and_gradients(objective, name, chunk_size, ids):
    torch.manual_seed(0)
    loss = SupClapLoss(
        objective, radius_init=0.3, constraint_weight=0.1, loss_chunk_size=chunk_size, **OPTIONS[name]
    ).double()
    for parameter_name, parameter in loss.named_parameters():
        if parameter_name.endswith("mlp.4.weight"):
            torch.nn.init.normal_(parameter, std=0.2)
    audio = unit(B, D, seed=1)
    text = F.normalize(audio + 0.8 * unit(B, D, seed=2), dim=-1)
    scale = torch.tensor([8.0], dtype=torch.float64)
    inputs = {"audio": audio, "text": text, "scale": scale}
    if objective == "siglip":
        inputs["bias"] = torch.tensor([-3.0], dtype=torch.float64)
    for tensor in inputs.values():
        tensor.requires_grad_()
    output = loss(audio, text, scale, inputs.get("bias"), ids)
    (0.5 * output.loss).backward()
    gradients = {key: tensor.grad for key, tensor in (inputs | dict(loss.named_parameters())).items()}
    assert all(gradient.abs().sum() > 0 for gradient in gradients.values())
    return {"loss": output.loss.detach(), **output.parts, **output.diagnostics}, gradients


@pytest.mark.parametrize("with_ids", [False, True], ids=["", "ids"])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("objective", ["infonce", "siglip"])
def test_chunks_give_the_values_and_gradients_of_all_rows_at_once(objective, name, with_ids):
    ids = IDS if with_ids else None
    expected = values_and_gradients(objective, name, None, ids)
    for chunk_size in (3, B + 1):
        got = values_and_gradients(objective, name, chunk_size, ids)
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


class LargestTensor(TorchDispatchMode):
    """Counts the elements of the largest tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.untyped_storage().nbytes() // value.element_size())
        return result


@pytest.mark.parametrize("objective", ["infonce", "siglip"])
@pytest.mark.parametrize("chunk_size", [16, None])
def test_no_matrix_of_the_whole_batch_is_ever_made_in_chunks(objective, chunk_size):
    rows = 512
    loss = SupClapLoss(objective, batch_size=rows, loss_chunk_size=chunk_size)
    audio, text = unit(rows, 8, seed=1).requires_grad_(), unit(rows, 8, seed=2).requires_grad_()
    with LargestTensor() as largest:
        loss(audio, text, torch.tensor(5.0), ids=torch.arange(rows) // 2).loss.backward()
    if chunk_size is None:
        assert largest.elements >= rows * rows
    else:
        assert largest.elements <= 128 * rows  # the weights of the radius predictor: 128 x N


def test_chunks_under_autocast_stay_in_float32():
    audio, text = unit(B, D, seed=1, dtype=torch.float32), unit(B, D, seed=2, dtype=torch.float32)
    loss = SupClapLoss(batch_size=B, loss_chunk_size=3)
    expected = loss(audio, text, 10.0).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert loss(audio, text, 10.0).loss == expected


def test_a_second_derivative_of_the_chunked_form_is_refused_and_not_wrong():
    audio, text = unit(B, D, seed=1).requires_grad_(), unit(B, D, seed=2)
    loss = SupClapLoss(svr=None, loss_chunk_size=3)(audio, text, 10.0).loss
    with pytest.raises(RuntimeError, match="no second derivative: leave out loss_chunk_size"):
        torch.autograd.grad(loss, audio, create_graph=True)


def test_sigmoid_loss_of_confident_pairs_keeps_its_precision_in_float32():
    # softplus(-z) of a positive at z = 15 is 3e-7, lost if it came from softplus(z) - z
    pair = torch.eye(2)
    loss = SupClapLoss("siglip", svr=None, loss_chunk_size=1)(pair, pair, 30.0, logit_bias=-15.0).loss
    expected = SupClapLoss("siglip", svr=None)(pair.double(), pair.double(), 30.0, logit_bias=-15.0).loss
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)
