"""Processing code of SupCLAP: audio, features, texts, zero-shot pipeline. Its files travel with every checkpoint."""

from .audio_supclap import load_waveform
from .encoder_features_supclap import SupClapEncoderFeatureExtractor
from .feature_extraction_supclap import SupClapFeatureExtractor
from .pipeline_supclap import SupClapZeroShotAudioClassificationPipeline
from .processing_supclap import SupClapProcessor


__all__ = [
    "SupClapEncoderFeatureExtractor",
    "SupClapFeatureExtractor",
    "SupClapProcessor",
    "SupClapZeroShotAudioClassificationPipeline",
    "load_waveform",
]
