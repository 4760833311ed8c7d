"""Language codes of captions and of tokenizers that take a language."""

from collections.abc import Sequence
from typing import Any


# ISO 639-1 to the codes of NLLB tokenizers (SONAR), for the languages of the published translations of captions
NLLB = {
    "ca": "cat_Latn",
    "de": "deu_Latn",
    "en": "eng_Latn",
    "es": "spa_Latn",
    "fr": "fra_Latn",
    "it": "ita_Latn",
    "ja": "jpn_Jpan",
    "ko": "kor_Hang",
    "nl": "nld_Latn",
    "pt": "por_Latn",
    "zh": "zho_Hans",
}


def nllb_code(language: str | None) -> str | None:
    """`fr` as `fra_Latn`; other codes as they are."""
    return NLLB.get(language, language)


def tokenizer_codes(tokenizer: Any, languages: Sequence[str | None]) -> list[str] | None:
    """The language of each text as the tokenizer calls it; `None` where it takes none or the texts do not say theirs.

    Args:
        tokenizer: A tokenizer; one with a `src_lang` takes a language.
        languages: A code per text, of ISO 639-1 (`en`) or the tokenizer's own (`eng_Latn`).

    Raises:
        ValueError: Some texts say their language and others do not.
    """
    if not hasattr(tokenizer, "src_lang") or all(language is None for language in languages):
        return None
    if any(language is None for language in languages):
        raise ValueError("Some captions say their language and others do not; give all rows a `language`.")
    # a multilingual tokenizer may have two-letter codes of its own (M2M100)
    own = getattr(tokenizer, "lang_code_to_token", None) or {}
    short = {code: language for language, code in NLLB.items()}

    def code_of(language: str) -> str:
        known = (name for name in (language, short.get(language)) if name in own)
        return next(known, nllb_code(language))

    return [code_of(language) for language in languages]
