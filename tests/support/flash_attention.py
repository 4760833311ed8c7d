"""FlashAttention without a GPU: its own Triton kernels, interpreted, or its two functions in plain PyTorch."""

import functools
from itertools import pairwise

import torch
import torch.nn.functional as F
from transformers import modeling_flash_attention_utils as flash_utils


def attention(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False):
    """`flash_attn.flash_attn_func`: (batch, length, heads, dimension) in half precision; there is no mask."""
    assert q.dtype in (torch.float16, torch.bfloat16)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, None, dropout_p, causal, scale=softmax_scale).transpose(1, 2)


def attention_of_sequences(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False
):
    """`flash_attn.flash_attn_varlen_func`: sequences in a row, (total length, heads, dimension), each by itself."""
    of_sequences = zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True)
    options = dropout_p, softmax_scale, causal
    return torch.cat(
        [attention(q[None, a:b], k[None, c:d], v[None, c:d], *options)[0] for (a, b), (c, d) in of_sequences]
    )


def interpreted_kernels():
    """The Triton kernels of the package flash-attn, for CPU tensors.

    Its build for AMD has them, registered for GPUs alone; both variables must be there before torch is imported:

        FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE \\
            pip install --no-build-isolation flash-attn
        FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE TRITON_INTERPRET=1 pytest -m record tests/modeling/test_flash_attention.py
    """
    custom_op = torch.library.custom_op
    torch.library.custom_op = lambda name, fn=None, *, device_types=None, **options: custom_op(name, fn, **options)
    try:
        import flash_attn
    finally:
        torch.library.custom_op = custom_op
    return flash_attn.flash_attn_func, flash_attn.flash_attn_varlen_func


def install(monkeypatch, functions) -> list[str]:
    """Have transformers find FlashAttention 2, on any device, and its functions here; returns the growing list of calls."""
    calls = []

    def counted(function):
        @functools.wraps(function)  # transformers reads the signature
        def call(*args, **kwargs):
            calls.append(function.__name__)
            return function(*args, **kwargs)

        return call

    found = (*map(counted, functions), None, flash_utils._pad_input, flash_utils._unpad_input)
    monkeypatch.setattr(flash_utils, "_lazy_imports", lambda *args, **kwargs: found)
    monkeypatch.setattr(flash_utils, "_loaded_implementation", None)
    compatible = flash_utils.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2]
    monkeypatch.setitem(compatible, "general_availability_check", lambda **kwargs: True)
    monkeypatch.setitem(compatible, "supported_devices", ((lambda: True, "cpu"),))
    return calls
