"""Pure functions on tensors: scores, the envelope, calibration, thresholds, metrics."""
