"""InfoNCE, SigLIP and the objective without support vectors, against torch's own losses and closed forms."""

import math

import pytest
import torch
import torch.nn.functional as F
import transformers

from supclap.errors import SettingsError
from supclap.losses import PaperReadings, SupClapLoss, info_nce, siglip, similarity_logits
from support.builders import unit


@pytest.fixture
def pairs():
    """Six audio and text embeddings of dimension 5."""
    return unit(6, 5, seed=1), unit(6, 5, seed=2)


# Six directed logits of a 3x3 example with pairs 0 and 2 of the same clip.
LOGITS = torch.tensor([[2.0, 1.0, 0.5], [0.0, 3.0, -1.0], [1.5, -0.5, 1.0]], dtype=torch.float64)
TEXT_SUPPORT = PaperReadings(bi_mode="text_support")
SAME_CLIP = torch.tensor([[True, False, True], [False, True, False], [True, False, True]])


def test_infonce_is_torch_cross_entropy_summed_over_both_directions(pairs):
    audio, text = pairs
    logits = 14.0 * text @ audio.T
    labels = torch.arange(6)
    expected = F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)
    output = SupClapLoss(svr=None)(audio, text, 14.0)
    torch.testing.assert_close(output.loss, expected, rtol=1e-14, atol=0)


def test_siglip_is_its_closed_form(pairs):
    audio, text = pairs
    expected = 0.0
    for i in range(6):
        for j in range(6):
            z = 10.0 * float(text[i] @ audio[j]) - 3.0
            expected += math.log1p(math.exp(-z if i == j else z)) / 6
    output = SupClapLoss("siglip", svr=None)(audio, text, 10.0, logit_bias=-3.0)
    assert output.loss.item() == pytest.approx(expected, rel=1e-13)


def test_siglip_equals_the_loss_of_transformers(pairs):
    audio, text = (x.float() for x in pairs)
    config = transformers.SiglipConfig(
        text_config={"vocab_size": 4, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1},
        vision_config={"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 16},
    )
    model = transformers.SiglipModel(config)
    with torch.no_grad():
        model.logit_scale.fill_(math.log(10.0))
        model.logit_bias.fill_(-10.0)
    # Its towers are replaced by the embeddings, its objective is what is compared.
    model.text_model.forward = lambda **_: transformers.modeling_outputs.BaseModelOutputWithPooling(pooler_output=text)
    model.vision_model.forward = lambda **_: transformers.modeling_outputs.BaseModelOutputWithPooling(
        pooler_output=audio
    )
    expected = model(input_ids=None, pixel_values=None, return_loss=True).loss
    output = SupClapLoss("siglip", svr=None)(audio, text, 10.0, logit_bias=torch.tensor([-10.0]))
    torch.testing.assert_close(output.loss, expected)


def test_multi_positive_infonce_is_cross_entropy_with_a_uniform_target():
    target = SAME_CLIP.double() / SAME_CLIP.sum(1, keepdim=True)
    torch.testing.assert_close(info_nce(LOGITS, SAME_CLIP), F.cross_entropy(LOGITS, target), rtol=1e-14, atol=0)


def test_multi_positive_infonce_on_a_written_out_example():
    def lse(*values):
        return math.log(sum(math.exp(v) for v in values))

    rows = (lse(2, 1, 0.5) - (2 + 0.5) / 2, lse(0, 3, -1) - 3, lse(1.5, -0.5, 1) - (1.5 + 1) / 2)
    assert info_nce(LOGITS, SAME_CLIP).item() == pytest.approx(sum(rows) / 3, rel=1e-14)


def test_ids_give_the_same_clip_a_uniform_target_in_both_directions():
    audio, text = unit(3, 4, seed=3), unit(3, 4, seed=4)
    logits = 5.0 * text @ audio.T
    target = SAME_CLIP.double() / SAME_CLIP.sum(1, keepdim=True)
    expected = F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)
    output = SupClapLoss(svr=None)(audio, text, 5.0, ids=torch.tensor([7, 8, 7]))
    torch.testing.assert_close(output.loss, expected, rtol=1e-14, atol=0)


def test_siglip_labels_pairs_of_the_same_clip_positive():
    labels = torch.where(SAME_CLIP, 1.0, -1.0).double()
    expected = F.softplus(-labels * LOGITS).sum() / 3
    torch.testing.assert_close(siglip(LOGITS, SAME_CLIP), expected, rtol=1e-14, atol=0)


def test_unique_ids_change_nothing(pairs):
    loss = SupClapLoss(svr=None)
    torch.testing.assert_close(
        loss(*pairs, 10.0, ids=torch.arange(6)).loss, loss(*pairs, 10.0).loss, rtol=1e-14, atol=0
    )


def test_excluded_columns_are_not_in_the_denominator():
    exclude = torch.tensor([[False, False, True]])
    loss = info_nce(LOGITS[:1], torch.tensor([[True, False, False]]), exclude=exclude)
    assert loss.item() == pytest.approx(math.log1p(math.exp(-1)), rel=1e-14)


@pytest.mark.parametrize("objective", ["infonce", "siglip"])
@pytest.mark.parametrize("svr", ["dynamic", "static", None])
def test_autocast_does_not_change_the_loss_or_its_dtype(objective, svr):
    audio, text = unit(6, 16, seed=1, dtype=torch.float32), unit(6, 16, seed=2, dtype=torch.float32)
    loss = SupClapLoss(objective, svr, batch_size=6)
    if svr == "dynamic":
        torch.nn.init.normal_(loss.radius[0].mlp[-1].weight, std=0.01)
    expected = loss(audio, text, 10.0).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = loss(audio, text, 10.0)
    assert output.loss.dtype == torch.float32
    assert output.loss == expected


def test_bfloat16_embeddings_are_contrasted_in_float32():
    audio, text = unit(6, 16, seed=1).bfloat16(), unit(6, 16, seed=2).bfloat16()
    loss = SupClapLoss(batch_size=6)
    output = loss(audio, text, torch.tensor([10.0], dtype=torch.bfloat16))
    assert output.loss.dtype == torch.float32
    assert output.loss == loss(audio.float(), text.float(), 10.0).loss


def test_float64_embeddings_stay_float64(pairs):
    assert SupClapLoss(svr="static")(*pairs, torch.tensor(10.0)).loss.dtype == torch.float64


def test_similarity_logits_scale_the_dot_product(pairs):
    torch.testing.assert_close(similarity_logits(*pairs, 3.0), 3.0 * pairs[0] @ pairs[1].T, rtol=1e-14, atol=1e-15)


def test_non_square_logits_without_positives_are_refused():
    with pytest.raises(ValueError, match="pass `positives`"):
        info_nce(LOGITS[:2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text_embeds": unit(5, 5)}, "6 clips .* 5 texts .* draw one caption for each clip"),
        ({"audio_embeds": unit(6, 4)}, r"\(6, 4\) and \(6, 5\)"),
        ({"audio_embeds": unit(1, 5), "text_embeds": unit(1, 5)}, "no negatives .* larger batch"),
        (
            {"text_embeds": unit(6, 5).float()},
            "audio_embeds are torch.float64 and text_embeds torch.float32: .* convert",
        ),
        ({"audio_embeds": unit(0, 5), "text_embeds": unit(0, 5)}, "B >= 1"),
        ({"audio_embeds": 2 * unit(6, 5)}, "audio_embeds must have unit length"),
        ({"text_embeds": unit(6, 5) * torch.nan}, "text_embeds hold NaN or infinite values: look"),
        ({"audio_embeds": unit(6, 5) * torch.inf}, "audio_embeds hold NaN or infinite"),
        ({"ids": torch.arange(5)}, "ids must be 6 integers"),
        ({"ids": torch.arange(6.0)}, "ids must be 6 integers"),
        ({"logit_bias": -10.0}, "logit_bias has no effect"),
        ({"logit_scale": torch.ones(2)}, "logit_scale must be a single number"),
    ],
)
def test_bad_input_is_named(arguments, message):
    good = {"audio_embeds": unit(6, 5), "text_embeds": unit(6, 5, seed=1), "logit_scale": 10.0}
    with pytest.raises(ValueError, match=message):
        SupClapLoss(svr=None)(**good | arguments)


@pytest.mark.parametrize("name", ["audio_embeds", "text_embeds", "ids"])
def test_input_that_is_no_tensor_is_named(name):
    good = {"audio_embeds": unit(6, 5), "text_embeds": unit(6, 5, seed=1), "ids": torch.arange(6), "logit_scale": 10.0}
    with pytest.raises(TypeError, match=f"{name} must be a tensor, got list"):
        SupClapLoss(svr=None)(**good | {name: good[name].tolist()})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "triplet"}, "objective must be one of"),
        ({"svr": "fixed"}, "svr must be one of"),
        ({"svr_direction": "both"}, "svr_direction must be one of"),
        ({"radius_predictor": "mlp"}, "radius_predictor must be one of"),
        ({"on_batch_mismatch": "drop"}, "on_batch_mismatch must be one of"),
        ({"svr": "dynamic"}, "needs batch_size"),
        (
            {"svr": "static", "svr_weight": -1.0},
            "svr_weight weighs a loss and must be a finite number, at least 0, got -1.0",
        ),
        ({"svr": "static", "constraint_weight": -0.01}, "constraint_weight weighs a loss"),
        ({"svr": "static", "svr_weight": math.nan}, "svr_weight weighs a loss"),
        ({"svr": "static", "svr_weight": math.inf}, "svr_weight weighs a loss"),
        ({"svr": "static", "radius_init": math.nan}, "radius_init must be a finite number"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"svr": None, "loss_chunk_size": 0}, "loss_chunk_size must be at least 1"),
        ({"objective": "siglip", "svr": "static", "readings": TEXT_SUPPORT}, "choose svr_direction='uni'"),
        ({"svr": "static", "loss_chunk_size": 4, "readings": TEXT_SUPPORT}, "leave out loss_chunk_size"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(SettingsError, match=message):
        SupClapLoss(**options)


def test_an_unknown_reading_is_named():
    with pytest.raises(SettingsError, match="bi_mode must be one of .*'symmetric', 'text_support'.*, got 'audio'"):
        PaperReadings(bi_mode="audio")
