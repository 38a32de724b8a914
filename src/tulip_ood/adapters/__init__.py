"""Every detector of ours inside other libraries: OpenOOD, pytorch-ood, scikit-learn.

None of the three is needed to import this; a class becomes one of theirs when an instance of it is
made, if their library is there.
"""

from tulip_ood.adapters.openood import TulipPostprocessor
from tulip_ood.adapters.pytorch_ood import TulipDetector
from tulip_ood.adapters.sklearn import TulipOutlier

__all__ = ["TulipDetector", "TulipOutlier", "TulipPostprocessor"]
