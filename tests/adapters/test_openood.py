import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tulip_ood.adapters import TulipPostprocessor
from tulip_ood.detectors import KNN, MSP, Tulip, make
from tulip_ood.errors import InputError, NotFittedError
from tulip_ood.numerics.metrics import auroc

pytestmark = [
    pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning"),
    pytest.mark.usefixtures("short_search"),
]


def dicts(pairs: Any) -> list[dict[str, Any]]:
    """Batches as OpenOOD's loaders give them, with the rest that is in them."""
    return [{"data": x, "label": y, "data_aux": x, "soft_label": 0 * y} for x, y in pairs]


@pytest.fixture
def loaders(vectors: Any) -> Any:
    test = [(vectors.test[0][i : i + 64], vectors.test[1][i : i + 64]) for i in range(0, 600, 64)]
    ood = [(x, torch.full((len(x),), -1)) for x in vectors.ood.split(64)]
    inside = {"train": dicts([vectors.test]), "val": dicts(vectors.loader()), "test": dicts(test)}
    return inside, {"val": dicts(ood[:2]), "far": {"noise": dicts(ood)}}


def test_tulip_by_default_and_on_validation_data_alone(vectors: Any, loaders: Any) -> None:
    inside, outside = loaders
    ours = Tulip(vectors.model).fit(vectors.loader())
    theirs = TulipPostprocessor()
    assert theirs.APS_mode is False
    theirs.setup(vectors.model, {"val": inside["val"]}, {})  # neither training nor OOD data
    pred, conf, label = theirs.inference(vectors.model, inside["test"], progress=False)
    result = ours.predict(vectors.test[0])
    assert np.array_equal(pred, result.label.numpy())
    assert np.array_equal(label, vectors.test[1].numpy())
    assert np.allclose(conf, -result.score.numpy(), rtol=0, atol=1e-12)
    far = theirs.inference(vectors.model, outside["far"]["noise"], progress=False)[1]
    expected = auroc(result.score, ours.score(vectors.ood))
    assert auroc(-conf, -far) == pytest.approx(expected, abs=1e-12)
    assert set(theirs.get_hyperparam()) == {"epsilon", "lam", "j"}
    assert theirs.get_hyperparam()["epsilon"] == ours.fitted.setting.epsilon


def test_any_method_and_its_settings(vectors: Any, loaders: Any) -> None:
    for method, settings in (("ent", {}), ("ebo+scale:90", {}), ("knn", {"k": 7})):
        theirs = TulipPostprocessor(method=method, **settings)
        theirs.setup(vectors.model, *loaders)
        ours = make(method, vectors.model, **settings).fit(vectors.loader())
        confidence = theirs.postprocess(vectors.model, vectors.ood)[1]
        assert torch.equal(confidence, -ours.score(vectors.ood)), method


def test_training_data_and_ood_data_only_where_they_are_asked_for(
    vectors: Any, loaders: Any
) -> None:
    inside, outside = loaders
    train = TulipPostprocessor(method="knn", track="train")
    train.setup(vectors.model, inside, outside)
    expected = KNN(vectors.model).fit(vectors.loader(), train=[vectors.test])
    assert torch.equal(train.detector.score(vectors.ood), expected.score(vectors.ood))
    main = TulipPostprocessor(method="knn", track="train")
    main.setup(vectors.model, {"val": inside["val"], "main_train": inside["train"]}, outside)
    assert torch.equal(main.detector.score(vectors.ood), expected.score(vectors.ood))
    tuned = TulipPostprocessor(method="gen", tune="ood")
    tuned.setup(vectors.model, inside, outside)
    by_hand = make("gen", vectors.model).fit(vectors.loader(), tune=[vectors.ood[:128]])
    assert tuned.get_hyperparam() == by_hand.parameters
    with pytest.raises(InputError, match="OOD loaders need 'val'; they have: far"):
        tuned.setup(vectors.model, inside, {"far": outside["far"]})
    with pytest.raises(InputError, match="'main_train' or 'train'; they have: val"):
        main.setup(vectors.model, {"val": inside["val"]}, outside)


def test_an_input_without_a_score_has_the_lowest_confidence_and_it_is_finite(
    vectors: Any, loaders: Any
) -> None:
    theirs = TulipPostprocessor(method="msp")
    theirs.setup(vectors.model, *loaders)
    x = vectors.test[0][:5].clone()
    x[3] = torch.nan
    confidence = theirs.postprocess(vectors.model, x)[1]
    assert confidence.argmin() == 3
    assert confidence.isfinite().all()
    assert confidence.float().isfinite().all()


def test_openoods_search_of_parameters(vectors: Any, loaders: Any) -> None:
    theirs = TulipPostprocessor(method="knn")
    with pytest.raises(NotFittedError, match="setup"):
        theirs.set_hyperparam([5])
    theirs.setup(vectors.model, *loaders)
    assert list(theirs.args_dict) == ["k"]
    theirs.set_hyperparam([5])
    assert theirs.get_hyperparam() == {"k": 5}
    assert torch.equal(
        theirs.detector.score(vectors.ood),
        KNN(vectors.model, k=5).fit(vectors.loader()).score(vectors.ood),
    )
    with pytest.raises(InputError, match="expected values of k; got"):
        theirs.set_hyperparam([5, 6])
    tulip = TulipPostprocessor(recipe="balanced")
    tulip.setup(vectors.model, *loaders)
    tulip.set_hyperparam([0.01, 0.0, 1.0])
    assert tulip.get_hyperparam() == {"epsilon": 0.01, "lam": 0.0, "j": 1.0}


def test_a_config_of_openoods(vectors: Any, loaders: Any) -> None:
    config = SimpleNamespace(
        postprocessor=SimpleNamespace(
            postprocessor_args={"method": "knn", "k": 3},
            postprocessor_sweep=SimpleNamespace(k_list=[3, 30]),
        )
    )
    theirs = TulipPostprocessor(config)
    assert (theirs.method, theirs.settings, theirs.args_dict) == ("knn", {"k": 3}, {"k": [3, 30]})
    assert TulipPostprocessor(config, k=9).settings == {"k": 9}
    theirs.setup(vectors.model, *loaders)
    assert theirs.get_hyperparam() == {"k": 3}


def test_it_is_one_of_theirs_if_they_are_there(
    openood_base: type, vectors: Any, loaders: Any
) -> None:
    theirs = TulipPostprocessor(method="msp")
    assert isinstance(theirs, openood_base)
    assert isinstance(theirs, TulipPostprocessor)
    assert type(theirs) is type(TulipPostprocessor())
    theirs.setup(vectors.model, *loaders)
    test = loaders[0]["test"]
    own = theirs.inference(vectors.model, test, progress=False)
    for a, b in zip(own, openood_base.inference(theirs, vectors.model, test), strict=True):
        assert np.array_equal(a, b)


def test_without_openood_it_works_alike(nobody: None, vectors: Any, loaders: Any) -> None:
    theirs = TulipPostprocessor(method="msp")
    assert type(theirs) is TulipPostprocessor
    theirs.setup(vectors.model, *loaders)
    assert len(theirs.inference(vectors.model, loaders[0]["test"])[0]) == 600


def test_a_pickled_one_is_set_up_again_with_the_same_result(
    openood_base: type, vectors: Any, loaders: Any
) -> None:
    """OpenOOD's scripts pickle the postprocessor and call setup after loading it."""
    theirs = TulipPostprocessor(method="ent", seed=3)
    theirs.setup(vectors.model, *loaders)
    again = pickle.loads(pickle.dumps(theirs))
    assert isinstance(again, openood_base)
    with pytest.raises(NotFittedError, match="call setup"):
        again.postprocess(vectors.model, vectors.ood)
    again.setup(vectors.model, *loaders)
    assert torch.equal(again.detector.score(vectors.ood), theirs.detector.score(vectors.ood))


def test_what_is_refused(vectors: Any, loaders: Any) -> None:
    with pytest.raises(InputError, match="track must be"):
        TulipPostprocessor(track="test")
    with pytest.raises(InputError, match="tune must be"):
        TulipPostprocessor(tune="val")
    theirs = TulipPostprocessor(method="msp")
    with pytest.raises(InputError, match="ID loaders need 'val'; they have: test"):
        theirs.setup(vectors.model, {"test": []}, {})
    with pytest.raises(InputError, match="'data' and 'label'; it has image"):
        theirs.setup(vectors.model, {"val": [{"image": vectors.ood}]}, {})
    with pytest.raises(InputError, match="msp has no argument 'samples'"):
        TulipPostprocessor(method="msp", samples=3).setup(vectors.model, *loaders)
    theirs.setup(vectors.model, *loaders)
    with pytest.raises(InputError, match="another network"):
        theirs.postprocess(torch.nn.Linear(2, 3), vectors.ood)
    with pytest.raises(InputError, match="gave no batch"):
        theirs.inference(vectors.model, [])
    assert isinstance(theirs.detector, MSP)
