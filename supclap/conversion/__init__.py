"""Reads published weights into our models. A weight that is missing, unknown or of another shape is an error."""

from .ced import load_ced_checkpoint
from .laion_clap import load_laion_clap_checkpoint
from .ml_clap import load_ml_clap_checkpoint
from .sonar import load_sonar_checkpoint


__all__ = [
    "load_ced_checkpoint",
    "load_laion_clap_checkpoint",
    "load_ml_clap_checkpoint",
    "load_sonar_checkpoint",
]
