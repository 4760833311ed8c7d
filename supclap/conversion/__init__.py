"""Published weights in, our format out; strict."""

from .ced import load_ced_checkpoint


__all__ = ["load_ced_checkpoint"]
