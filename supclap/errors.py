"""Errors that a run reports in one line: what is wrong is a setting or a file, and the message says what to change."""


class SettingsError(ValueError):
    """Settings that cannot be run, alone, together or with the data at hand."""


class RecipeError(SettingsError):
    """A recipe that cannot be run; the message names the key, the value and what is allowed."""
