"""The subcommands of `supclap`, a module each; what takes seconds to import is imported when one runs."""
