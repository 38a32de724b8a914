"""Can this network's answer be trusted on this input?

import tulip_ood as tulip

detector = tulip.Tulip(model)            # any nn.Module that returns logits
detector.fit(val_loader)                 # labelled in-distribution data, not training data
result = detector.predict(x)             # .label .probs .score .p_value .accepted .reason
"""

from tulip_ood import detectors
from tulip_ood.detectors.saving import load
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.errors import TulipError, TulipWarning
from tulip_ood.version import __version__

__all__ = ["Tulip", "TulipError", "TulipWarning", "__version__", "detectors", "load"]
