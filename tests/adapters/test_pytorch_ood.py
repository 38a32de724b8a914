import copy
import pickle
from types import ModuleType
from typing import Any

import pytest
import torch

from tulip_ood.adapters import TulipDetector
from tulip_ood.adapters.pytorch_ood import NeedsInputsError
from tulip_ood.detectors import KNN, Tulip
from tulip_ood.errors import InputError, NotFittedError, TulipError

pytestmark = [
    pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning"),
    pytest.mark.usefixtures("short_search"),
]


def test_scores_are_ours_high_is_ood(vectors: Any) -> None:
    theirs = TulipDetector(vectors.model).fit(vectors.loader())
    ours = Tulip(vectors.model).fit(vectors.loader())
    assert theirs.requires_fit
    assert torch.equal(theirs(vectors.ood), ours.score(vectors.ood))
    assert torch.equal(theirs.predict(vectors.test[0]), ours.score(vectors.test[0]))
    x = vectors.test[0][:3].clone()
    x[1] = torch.inf
    assert theirs(x).argmax() == 1
    assert theirs(x).isfinite().all()


def test_rows_with_a_negative_label_are_not_learned_from(vectors: Any) -> None:
    mixed = [(torch.cat([x, x + 9]), torch.cat([y, 0 * y - 1])) for x, y in vectors.loader()]
    mixed.append((vectors.ood, torch.full((len(vectors.ood),), -1)))  # nothing is left of this one
    theirs = TulipDetector(vectors.model, "knn").fit(mixed)
    ours = KNN(vectors.model).fit(vectors.loader())
    assert torch.equal(theirs(vectors.ood), ours.score(vectors.ood))


def test_training_data_and_parameters_against_ood_data(vectors: Any) -> None:
    theirs = TulipDetector(vectors.model, "knn").fit(vectors.loader(), train=[vectors.test])
    ours = KNN(vectors.model).fit(vectors.loader(), train=[vectors.test])
    assert torch.equal(theirs(vectors.ood), ours.score(vectors.ood))
    theirs.fit(vectors.loader(), tune=[vectors.ood[:100]])
    ours.fit(vectors.loader(), tune=[vectors.ood[:100]])
    assert theirs.get_hyperparameters() == ours.parameters


def test_it_is_one_of_theirs_and_so_are_its_errors(
    pytorch_ood_api: ModuleType, vectors: Any
) -> None:
    theirs = TulipDetector(vectors.model, "msp")
    assert isinstance(theirs, pytorch_ood_api.Detector)
    with pytest.raises(pytorch_ood_api.RequiresFittingException, match="call fit") as unfitted:
        theirs(vectors.ood)
    assert isinstance(unfitted.value, NotFittedError)
    with pytest.raises(pytorch_ood_api.ModelNotSetException, match="no model") as modelless:
        TulipDetector(None).predict(vectors.ood)
    assert isinstance(modelless.value, TulipError)
    assert theirs.fit(vectors.loader()) is theirs
    assert theirs(vectors.ood).shape == (300,)


def test_without_pytorch_ood_it_works_alike(nobody: None, vectors: Any) -> None:
    theirs = TulipDetector(vectors.model, "msp")
    assert type(theirs) is TulipDetector
    with pytest.raises(NotFittedError):
        theirs(vectors.ood)
    with pytest.raises(InputError):
        TulipDetector(None).fit(vectors.loader())
    assert theirs.fit(vectors.loader())(vectors.ood).shape == (300,)


def test_features_are_refused(vectors: Any) -> None:
    theirs = TulipDetector(vectors.model)
    for call in (theirs.predict_features, lambda z: theirs.fit_features(z, z)):
        with pytest.raises(NotImplementedError, match="tulip runs the network itself") as refused:
            call(torch.zeros(2, 32))
        assert isinstance(refused.value, NeedsInputsError)


def test_a_grid_search(vectors: Any) -> None:
    """What pytorch-ood's GridSearch calls."""
    theirs = TulipDetector(vectors.model, "knn")
    assert theirs.hyperparameter_space == {"k": [50, 100, 200, 500, 1000]}
    theirs.to("cpu").hyperparameter_space = {"k": [3]}
    theirs.set_hyperparameters(k=3)
    assert theirs.get_hyperparameters() == {"k": 3}
    assert torch.equal(
        theirs.fit(vectors.loader())(vectors.ood),
        KNN(vectors.model, k=3).fit(vectors.loader()).score(vectors.ood),
    )
    theirs.set_hyperparameters(k=3)
    with pytest.raises(NotFittedError):  # with other parameters it has to be fitted again
        theirs(vectors.ood)
    with pytest.raises(InputError, match="knn has no parameter K; known: k"):
        theirs.set_hyperparameters(K=3)


def test_it_moves_with_its_model(vectors: Any) -> None:
    model = copy.deepcopy(vectors.model)
    theirs = TulipDetector(model, "msp")
    assert theirs.device == torch.device("cpu")
    assert TulipDetector(None).device is None
    before = theirs.fit(vectors.loader())(vectors.ood)
    assert theirs.to("cpu").device == torch.device("cpu")
    assert torch.equal(theirs(vectors.ood), before)


def test_a_copy_scores_alike(pytorch_ood_api: ModuleType, vectors: Any) -> None:
    theirs = TulipDetector(vectors.model, batch_size=50, recipe="balanced").fit(vectors.loader())
    for again in (pickle.loads(pickle.dumps(theirs)), copy.deepcopy(theirs)):
        assert isinstance(again, pytorch_ood_api.Detector)
        assert torch.equal(again(vectors.ood), theirs(vectors.ood))
        assert again.detector.engine.batch_size == 50
    with pytest.raises(NotFittedError):
        copy.copy(TulipDetector(vectors.model))(vectors.ood)
