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
    # a multilingual tokenizer with two-letter codes of its own (M2M100) knows them as they are
    own = getattr(tokenizer, "lang_code_to_token", None) or {}
    return [language if language in own else NLLB.get(language, language) for language in languages]
