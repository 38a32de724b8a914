"""scikit-learn's metrics over a pipeline that ends in our estimator."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import ours

from data import BATCH, OOD, Data
from tulip_ood.adapters import TulipOutlier


def rows(data: Data) -> Iterator[dict[str, Any]]:
    """One row a method."""
    from sklearn.base import clone
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    shape = data.val[0].shape[1:]
    flat = {name: x.flatten(1).numpy() for name, x in data.sizes.items()}
    for method in ("tulip", "ent", "msp", "gen+scale", "tulip&knn"):
        made = TulipOutlier(data.net, method, batch_size=BATCH)
        images = FunctionTransformer(lambda rows: rows.reshape(-1, *shape))
        pipeline = clone(make_pipeline(images, made)).fit(flat["val"], data.val[1].numpy())
        inside = -pipeline.score_samples(flat["test"])
        expected = ours.aurocs(ours.fitted(data, method), data)
        both = {}
        for name in OOD:
            outside = -pipeline.score_samples(flat[name])
            labels = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
            found = roc_auc_score(labels, np.r_[inside, outside])
            both[f"AUROC {name}"] = (float(found), expected[name])
        by = "roc_auc_score of a pipeline"
        yield {"library": "scikit-learn", "by": by, "method": method, "theirs and ours": both}
