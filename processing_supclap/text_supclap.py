"""Turns texts into tokens with any Hugging Face tokenizer: padded at the end, cut at the limit, one language per text."""

from collections.abc import Iterable, Mapping
from typing import Any

from transformers import BatchEncoding
from transformers.utils import logging


logger = logging.get_logger(__name__)

# Tokenizers that do not know their limit report 1e30; any number above this one means that there is none.
UNKNOWN_LIMIT = 10**9
# What a caller may set. Options that change the number of rows (overflowing tokens, pairs of texts) are left out, because
# row i would no longer belong to text i.
TEXT_OPTIONS = (
    "text_lang",
    "padding",
    "truncation",
    "max_length",
    "pad_to_multiple_of",
    "return_tensors",
    "add_special_tokens",
    "return_attention_mask",
    "return_token_type_ids",
)


def encode_text(
    tokenizer: Any,
    text: str | list[str],
    text_lang: str | list[str] | None = None,
    padding: bool | str = True,
    truncation: bool | str = True,
    max_length: int | None = None,
    pad_to_multiple_of: int | None = None,
    return_tensors: str | None = "pt",
    **kwargs,
) -> BatchEncoding:
    """Tokenizes one text or a list of texts.

    Padding goes to the end whatever the tokenizer's own side is: an encoder with absolute positions embeds a text
    padded at the front differently, and an embedding must not depend on the batch. The options that are not named below
    are those of tokenizers.

    Args:
        tokenizer: A Hugging Face tokenizer.
        text: A text or a list of texts.
        text_lang: Language code of all texts or one per text, for tokenizers with a `src_lang` (NLLB codes for SONAR:
            `"eng_Latn"`). The tokenizer's own language when omitted.
        max_length: Limit in tokens; where the tokenizer knows one, that when omitted.

    Returns:
        `input_ids` `(batch, length)` and what else the tokenizer gives.

    Raises:
        TypeError: A text is no string.
        ValueError: There is no text, a text is empty, or the tokenizer does not know the language.
    """
    texts = check_texts(text, "text")
    limit = known_limit(tokenizer.model_max_length if max_length is None else max_length)
    truncation = truncation if limit else False

    rows: list[dict] = [{}] * len(texts)
    for language, indices in _group_by_language(tokenizer, text_lang, len(texts)).items():
        group = [texts[i] for i in indices]
        options = {"truncation": truncation, "max_length": limit if truncation else None, **kwargs}
        encoded = _tokenize(tokenizer, group, language, **options)
        for position, i in enumerate(indices):
            rows[i] = {key: values[position] for key, values in encoded.items()}
        if truncation:
            # A row that fills the limit either was cut or fits exactly. Tokenizing it in full tells which.
            full = [t for t, ids in zip(group, encoded["input_ids"], strict=True) if len(ids) >= limit]
            uncut = _tokenize(tokenizer, full, language, **kwargs)["input_ids"] if full else []
            if any(len(ids) > limit for ids in uncut):
                logger.warning_once(
                    f"A text is longer than the limit of {limit} tokens; what lies beyond is ignored. Shorten such "
                    "texts, or split them and average the embeddings. (This is said once.)"
                )
    return tokenizer.pad(
        rows,
        padding=padding,
        max_length=limit,
        pad_to_multiple_of=pad_to_multiple_of,
        padding_side="right",
        return_attention_mask=kwargs.get("return_attention_mask"),
        return_tensors=return_tensors,
        verbose=False,
    )


def known_limit(limit: int) -> int | None:
    """Returns the `model_max_length` of a tokenizer, or `None` where the number means that it knows no limit."""
    return None if limit > UNKNOWN_LIMIT else limit


def check_texts(text: Any, name: str) -> list[str]:
    """Returns a string, or strings, as a list. Anything else, an empty list and an empty string are an error."""
    if not isinstance(text, Iterable) or isinstance(text, bytes | Mapping):
        raise TypeError(f"{name} must be a string or a list of strings, got {type(text).__name__}.")
    texts = [text] if isinstance(text, str) else list(text)
    if not texts:
        raise ValueError(f"{name} is an empty list. Pass at least one.")
    for i, item in enumerate(texts):
        if not isinstance(item, str):
            raise TypeError(f"{name}[{i}] must be a string, got {type(item).__name__}: {item!r}.")
        if not item.strip():
            raise ValueError(f"{name}[{i}] is empty. Fill or drop it.")
    return texts


def _group_by_language(tokenizer: Any, text_lang: str | list[str] | None, count: int) -> dict[str | None, list[int]]:
    """Returns the indices of the texts of each language."""
    if text_lang is None:
        return {None: list(range(count))}
    if not hasattr(tokenizer, "src_lang"):
        raise ValueError(
            f"text_lang has no use for {type(tokenizer).__name__}, which takes no language. Leave it out."
        )
    languages = [text_lang] * count if isinstance(text_lang, str) else list(text_lang)
    if len(languages) != count:
        raise ValueError(f"text_lang has {len(languages)} codes for {count} texts. Pass one code, or one per text.")
    groups: dict[str | None, list[int]] = {}
    for i, language in enumerate(languages):
        groups.setdefault(language, []).append(i)
    return groups


def _tokenize(tokenizer: Any, texts: list[str], language: str | None, **options) -> BatchEncoding:
    """Tokenizes texts of one language without padding, and leaves the tokenizer's own language as it was."""
    if language is None:
        return tokenizer(texts, verbose=False, **options)
    # The language is a state of the tokenizer. As an argument of the call it would be ignored silently.
    previous = tokenizer.src_lang
    try:
        tokenizer.src_lang = language
        if getattr(tokenizer, "cur_lang_code", None) == tokenizer.unk_token_id:
            raise KeyError(language)
        return tokenizer(texts, verbose=False, **options)
    except KeyError as error:
        raise ValueError(f"text_lang {language!r} is unknown to {type(tokenizer).__name__}; see its codes.") from error
    finally:
        tokenizer.src_lang = previous
