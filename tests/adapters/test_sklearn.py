"""Against the real scikit-learn."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import sklearn.base
import sklearn.exceptions
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted

from tulip_ood.adapters import TulipOutlier
from tulip_ood.detectors import KNN, Tulip
from tulip_ood.errors import InputError, NotFittedError
from tulip_ood.numerics.metrics import auroc

pytestmark = [
    pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning"),
    pytest.mark.usefixtures("short_search"),
]


@pytest.fixture(scope="module")
def arrays(vectors: Any) -> Any:
    """X and y of validation data, ID test data, OOD data, in NumPy's float64."""
    x, y = vectors.val
    return (x.double().numpy(), y.numpy()), vectors.test[0].double().numpy(), vectors.ood.numpy()


def test_scores_are_ours_with_their_sign(vectors: Any, arrays: Any) -> None:
    val, test, ood = arrays
    theirs = TulipOutlier(vectors.model).fit(*val)
    ours = Tulip(vectors.model).fit([vectors.val])
    assert np.array_equal(theirs.score_samples(test), -ours.score(vectors.test[0]).numpy())
    assert theirs.score_samples(test).dtype == np.float64
    labels = np.r_[np.zeros(len(test)), np.ones(len(ood))]
    scores = -np.r_[theirs.score_samples(test), theirs.score_samples(ood)]
    expected = auroc(ours.score(vectors.test[0]), ours.score(vectors.ood))
    assert roc_auc_score(labels, scores) == pytest.approx(expected, abs=1e-12)


def test_decisions_are_those_of_our_threshold(vectors: Any, arrays: Any) -> None:
    val, test, _ = arrays
    theirs = TulipOutlier(vectors.model, "ent", contamination=0.1).fit(*val)
    decision = theirs.decision_function(test)
    assert np.array_equal(decision, theirs.score_samples(test) - theirs.offset_)
    assert np.array_equal(theirs.predict(test), np.where(decision >= 0, 1, -1))
    accepted = theirs.detector_.predict(vectors.test[0]).accepted.numpy()
    assert np.array_equal(theirs.predict(test) == 1, accepted)
    assert (theirs.predict(val[0]) == -1).mean() == pytest.approx(0.1, abs=0.03)
    edge = theirs.score_samples(val[0]) == theirs.offset_  # the input that set the threshold
    assert edge.any()
    assert (theirs.predict(val[0][edge]) == 1).all()
    assert np.array_equal(theirs.fit_predict(*val), theirs.predict(val[0]))


def test_an_input_without_a_score_is_an_outlier(vectors: Any, arrays: Any) -> None:
    x, y = arrays[0]
    theirs = TulipOutlier(vectors.model, "msp").fit(x, y)
    odd = x[:4].copy()
    odd[2] = np.nan
    assert theirs.predict(odd)[2] == -1
    assert np.isfinite(theirs.score_samples(odd)).all()
    many = x.copy()
    many[:100] = np.nan  # more than the contamination: all that can be scored is accepted
    theirs.fit(many, y)
    assert theirs.predict(odd).tolist() == [1, 1, -1, 1]


def test_it_is_an_estimator(vectors: Any, arrays: Any) -> None:
    theirs = TulipOutlier(vectors.model, "knn", k=20)
    assert isinstance(theirs, sklearn.base.BaseEstimator)
    assert sklearn.base.is_outlier_detector(theirs)
    assert theirs.get_params() == {
        "model": vectors.model,
        "method": "knn",
        "contamination": 0.05,
        "recipe": "self",
        "k": 20,
    }
    assert "k=20" in repr(theirs)
    for call in (theirs.predict, theirs.score_samples, check_is_fitted):
        with pytest.raises(sklearn.exceptions.NotFittedError):
            call(theirs if call is check_is_fitted else arrays[1])
    with pytest.raises(NotFittedError, match=r"call fit\(X, y\)"):
        theirs.decision_function(arrays[1])
    theirs.fit(*arrays[0])
    check_is_fitted(theirs)
    assert theirs.n_features_in_ == 2


def test_clone_and_parameters(vectors: Any, arrays: Any) -> None:
    theirs = TulipOutlier(vectors.model, "knn", contamination=0.2, k=20).fit(*arrays[0])
    clone = sklearn.base.clone(theirs)
    assert clone.get_params() == theirs.get_params()
    assert clone.model is vectors.model  # nothing changes it: there is no need for a copy
    assert not hasattr(clone, "offset_")
    assert type(clone) is type(theirs)
    plain = sklearn.base._clone_parametrized(theirs)  # what clone does to most estimators
    assert plain.get_params().keys() == theirs.get_params().keys()
    clone.set_params(contamination=0.5, k=5).fit(*arrays[0])
    assert clone.offset_ > theirs.offset_
    expected = KNN(vectors.model, k=5).fit([vectors.val]).score(vectors.ood).numpy()
    assert np.array_equal(clone.score_samples(arrays[2]), -expected)
    with pytest.raises(ValueError, match="knn has no argument 'neighbours'"):
        clone.set_params(neighbours=3)
    assert clone.set_params(method="tulip", n_samples=4).method == "tulip"


def test_in_a_pipeline_and_a_search(vectors: Any, arrays: Any) -> None:
    (x, y), test, _ = arrays
    half = FunctionTransformer(lambda a: a / 2)
    pipeline = make_pipeline(half, TulipOutlier(vectors.model, "ebo")).fit(2 * x, y)
    alone = TulipOutlier(vectors.model, "ebo").fit(x, y)
    assert np.array_equal(pipeline.predict(2 * test), alone.predict(test))
    assert np.array_equal(pipeline.score_samples(2 * test), alone.score_samples(test))
    search = GridSearchCV(
        TulipOutlier(vectors.model, "knn"),
        {"k": [1, 20]},
        scoring=lambda made, a, b: made.score_samples(a).mean(),
        cv=2,
    ).fit(x, y)
    assert search.best_params_ == {"k": 1}  # the nearest is never farther than the twentieth


def test_training_data(vectors: Any, arrays: Any) -> None:
    theirs = TulipOutlier(vectors.model, "knn")
    theirs.fit(*arrays[0], train=tuple(part.numpy() for part in vectors.test))
    ours = KNN(vectors.model).fit([vectors.val], train=[vectors.test])
    assert np.array_equal(theirs.score_samples(arrays[2]), -ours.score(vectors.ood).numpy())


def test_a_pickled_one_scores_alike(vectors: Any, arrays: Any) -> None:
    theirs = TulipOutlier(vectors.model, recipe="balanced").fit(*arrays[0])
    for again in (pickle.loads(pickle.dumps(theirs)), copy.deepcopy(theirs)):
        assert type(again) is type(theirs)
        assert np.array_equal(again.predict(arrays[1]), theirs.predict(arrays[1]))
    again = pickle.loads(pickle.dumps(TulipOutlier(vectors.model)))
    with pytest.raises(NotFittedError):
        again.predict(arrays[1])


def test_without_scikit_learn_it_works_alike(nobody: None, vectors: Any, arrays: Any) -> None:
    theirs = TulipOutlier(vectors.model, "msp", contamination=0.1)
    assert type(theirs) is TulipOutlier
    with pytest.raises(NotFittedError):
        theirs.predict(arrays[1])
    assert set(theirs.fit(*arrays[0]).predict(arrays[1])) == {-1, 1}
    assert theirs.set_params(**theirs.get_params()).contamination == 0.1


def test_what_is_refused(vectors: Any, arrays: Any) -> None:
    x, y = arrays[0]
    theirs = TulipOutlier(vectors.model, "msp")
    with pytest.raises(InputError, match=r"fit\(X, y\) with the true classes"):
        theirs.fit(x)
    with pytest.raises(InputError, match="y must be the network's classes"):
        theirs.fit(x, y.astype(str))
    with pytest.raises(InputError, match="X must be numbers"):
        theirs.fit(x.astype(str), y)
    assert theirs.fit(x.tolist(), y.tolist()).score_samples(x.tolist()).shape == (600,)
    frozen = x.copy()
    frozen.flags.writeable = False  # a view of a data frame is
    assert np.array_equal(theirs.score_samples(frozen), theirs.score_samples(x))
