"""Bad input gets a clear error, or a score that is marked as invalid; nothing else is lost."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.errors import InputError, ModelError, NotFittedError, TulipWarning

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def fitted(request: pytest.FixtureRequest) -> Any:
    problem = request.getfixturevalue("vectors")
    return tulip_ood.Tulip(problem.model).fit(problem.loader(), recipe="balanced")


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_bad_input_is_marked_and_its_neighbours_are_not_touched(
    fitted: Any, vectors: Any, bad: float
) -> None:
    x = vectors.test[0][:8].clone()
    expected = fitted.score(x)
    x[3, 1] = bad
    score = fitted.score(x)
    assert score[3] == math.inf
    others = torch.arange(8) != 3
    torch.testing.assert_close(score[others], expected[others], rtol=1e-6, atol=1e-9)
    result = fitted.predict(x)
    assert not result.accepted[3]
    assert result.p_value[3] == 0
    assert result.reason[3].kind == "invalid"
    assert "not finite" in str(result.reason[3])


def test_only_bad_inputs(fitted: Any) -> None:
    assert (fitted.score(torch.full((3, 2), NAN)) == math.inf).all()


def test_bad_rows_are_left_out_of_a_fit_and_said(vectors: Any) -> None:
    x, y = vectors.val[0].clone(), vectors.val[1]
    x[:7, 0] = NAN
    with pytest.warns(TulipWarning, match="left out: 7 inputs with NaN or Inf"):
        detector = tulip_ood.Tulip(vectors.model).fit([(x, y)], recipe="balanced")
    assert detector._facts["n_validation"] == len(x) - 7


def test_nothing_to_fit_on(vectors: Any) -> None:
    detector = tulip_ood.Tulip(vectors.model)
    x, y = vectors.val
    with pytest.raises(InputError, match="the loader gave no inputs"):
        detector.fit([])
    with pytest.raises(InputError, match="NaN or Inf in all of 600 inputs"):
        detector.fit([(x * NAN, y)])
    with pytest.raises(InputError, match="expected a loader"):
        detector.fit(3)
    with pytest.raises(InputError, match=r"batch must be \(inputs, labels\)"):
        detector.fit([x])
    with pytest.raises(InputError, match="got tuple of length 3"):
        detector.fit([(x, x, y)])
    with pytest.raises(InputError, match="key 'labels' or 'label'; got x"):
        detector.fit([{"x": x}])


def test_a_pair_of_tensors_is_one_batch(vectors: Any) -> None:
    one = tulip_ood.Tulip(vectors.model).fit(vectors.val, recipe="balanced")
    other = tulip_ood.Tulip(vectors.model).fit(vectors.loader(), recipe="balanced")
    assert torch.equal(one.score(vectors.ood), other.score(vectors.ood))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: y + 1, r"labels must lie in 0…2 because the network has 3 outputs, but \d+ of"),
        (lambda y: y - 1, "from -1 to 1"),
        (lambda y: y + 0.5, "whole class numbers, got fractions"),
        (lambda y: y.float() / 0, "whole class numbers, got NaN"),
        (lambda y: y[:, None], r"the shape \[600\], got \[600, 1\]: pass labels.squeeze\(-1\)"),
        (lambda y: ["cat"] * len(y), "labels must be numbers, got list of length 600"),
        (lambda y: torch.nn.functional.one_hot(y), r"labels.argmax\(1\)"),
        (lambda y: y[:5], "every input needs a label"),
        (lambda y: y[:, None, None], "labels must have the shape"),
        (lambda y: torch.ones_like(y), "all 600 validation labels are class 1"),
    ],
)
def test_labels_that_do_not_fit(vectors: Any, change: Any, message: str) -> None:
    x, y = vectors.val
    with pytest.raises(InputError, match=message):
        tulip_ood.Tulip(vectors.model).fit([(x, change(y))], recipe="balanced")


class Counting(nn.Module):
    """Counts the inputs that go through it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.seen = inner, [0]

    def forward(self, x: Tensor) -> Tensor:
        self.seen[0] += len(x)
        return self.inner(x)


@pytest.mark.parametrize("method", ["tulip", "auto", "knn"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x, y + 1), "labels must lie in 0…2"),
        (lambda x, y: (x, torch.nn.functional.one_hot(y)), r"labels.argmax\(1\)"),
        (lambda x, y: (x, torch.ones_like(y)), "all 600 validation labels are class 1"),
        (lambda x, y: (x[:15], y[:15]), "at least 20 validation inputs"),
        (lambda x, y: (x[:1].repeat(180, 1), y[:180]), "all 180 validation inputs are the same"),
    ],
)
def test_nothing_is_searched_before_the_data_are_looked_at(
    vectors: Any, change: Any, message: str, method: str
) -> None:
    """A search takes minutes on a large network: what cannot be fitted on is refused before it."""
    network = Counting(vectors.model)
    detector = tulip_ood.detectors.make(method, network)
    with pytest.raises(InputError, match=message):
        detector.fit([change(*vectors.val)])
    assert network.seen[0] < 40


def test_inputs_too_large_to_be_held(vectors: Any) -> None:
    with pytest.raises(InputError, match=r"gave 600 inputs, but only 16 .*allow more memory"):
        tulip_ood.Tulip(vectors.model, fit_memory=1).fit([vectors.val])


def test_a_dataset_instead_of_a_loader(vectors: Any) -> None:
    with pytest.raises(InputError, match=r"DataLoader\(dataset, batch_size=64\)"):
        tulip_ood.Tulip(vectors.model).fit(torch.utils.data.TensorDataset(*vectors.val))


def test_a_generator_is_read_once(vectors: Any) -> None:
    batches = (batch for batch in vectors.loader())
    detector = tulip_ood.detectors.MSP(vectors.model).fit(batches)
    with pytest.raises(InputError, match="can be read only once"):
        detector.fit(batches)


@pytest.mark.parametrize("method", ["tulip", "gen"])
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda x: [x[:, :1]], ModelError, r"cannot run on inputs of shape \[N, 1\]"),
        (lambda x: [x[:, None]], InputError, "OOD inputs.* a 2-D float tensor; got a 3-D float"),
        (lambda x: [], InputError, "there are no OOD inputs: the loader gave no inputs"),
        (lambda x: 3, InputError, "expected a loader"),
    ],
)
def test_ood_inputs_that_do_not_fit(
    vectors: Any, method: str, change: Any, error: type[Exception], message: str
) -> None:
    detector = tulip_ood.detectors.make(method, vectors.model)
    with pytest.raises(error, match=message):
        detector.fit(vectors.loader(), tune=change(vectors.ood))


def test_own_kinds_that_do_not_fit(vectors: Any) -> None:
    detector = tulip_ood.Tulip(vectors.model)
    with pytest.raises(ModelError, match=r"cannot run on inputs of shape \[N, 1\]"):
        detector.fit(vectors.loader(), tune={"kinds": [lambda x: x[:, :1]]})


@pytest.mark.parametrize("use", [tulip_ood.Gate, lambda m: tulip_ood.export(m, "gate.onnx")])
def test_a_model_is_no_detector(vectors: Any, use: Any) -> None:
    with pytest.raises(InputError, match="expected a fitted detector, .* got Sequential"):
        use(vectors.model)


@pytest.mark.parametrize("method", ["odin", "tulip", "adascale-a"])
def test_inference_mode(vectors: Any, method: str) -> None:
    """Services run in it: what needs a gradient leaves it, wherever it was fitted."""
    outside = tulip_ood.detectors.make(method, vectors.model).fit(vectors.loader())
    with torch.inference_mode():
        inside = tulip_ood.detectors.make(method, vectors.model).fit(vectors.loader())
        own = vectors.ood + 0
        scores = [detector.score(own) for detector in (outside, inside)]
    scores += [detector.score(x) for detector in (outside, inside) for x in (own, vectors.ood)]
    assert all(torch.equal(one, scores[0]) for one in scores)


def test_training_inputs_that_do_not_fit(vectors: Any) -> None:
    x, y = vectors.val
    with pytest.raises(ModelError, match=r"cannot run on inputs of shape \[N, 1\]"):
        tulip_ood.detectors.make("knn", vectors.model).fit(vectors.loader(), train=[(x[:, :1], y)])


def test_a_tensor_of_ood_inputs_is_one_batch(vectors: Any) -> None:
    one, other = (
        tulip_ood.detectors.make("gen", vectors.model).fit(vectors.loader(), tune=ood)
        for ood in (vectors.ood, [(vectors.ood, torch.zeros(len(vectors.ood)))])
    )
    assert torch.equal(one.score(vectors.ood), other.score(vectors.ood))


def test_too_few_inputs(vectors: Any) -> None:
    x, y = vectors.val
    with pytest.raises(InputError, match="at least 20 validation inputs .*, got 15"):
        tulip_ood.Tulip(vectors.model).fit([(x[:15], y[:15])], recipe="balanced")


class Fragile(nn.Module):
    """Finite as trained; NaN as soon as its weight moves."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.net = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) + (1.0 - (self.scale - 1).abs() * 1e8).sqrt() - 1.0


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")  # its answers are random
def test_logits_that_break_under_perturbation(vectors: Any) -> None:
    with pytest.raises(
        ModelError, match=r"perturbed network gives NaN or Inf at epsilon 0.005.*layer_scale"
    ):
        tulip_ood.Tulip(Fragile()).fit(vectors.loader(), recipe="balanced")
    kept = tulip_ood.Tulip(Fragile(), layer_scale={"scale": 0})
    assert kept.fit(vectors.loader(), recipe="balanced").score(vectors.ood).isfinite().all()


def test_a_network_that_gives_nan(vectors: Any) -> None:
    model = nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.fill_(NAN)
    with pytest.raises(ModelError, match="the network itself gives NaN"):
        tulip_ood.Tulip(model).fit(vectors.loader(), recipe="balanced")


def test_inputs_of_another_shape(fitted: Any, vectors: Any) -> None:
    with pytest.raises(InputError, match=r"add the batch dimension, x.unsqueeze\(0\)"):
        fitted.score(vectors.ood[0])
    with pytest.raises(InputError, match=r"fitted on inputs of shape \[N, 2\], got \[N, 2, 2\]"):
        fitted.score(torch.zeros(3, 2, 2))
    with pytest.raises(InputError, match=r"are a tensor, got a tuple: .* torch.stack\(…\)"):
        fitted.score(tuple(vectors.ood[:3]))
    with pytest.raises(InputError, match=r"are a tensor, got a list: .* torch.stack\(…\)"):
        fitted.score(list(vectors.ood[:3]))
    with pytest.raises(InputError, match=r"got list of length 1: put .* torch.tensor\(…\)"):
        fitted.score([[0.1, 0.2]])
    with pytest.raises(InputError, match=r"got tuple of length 2"):
        fitted.predict((0.1, 0.2))
    with pytest.raises(InputError, match="a method is given by its name, .* got Sequential"):
        tulip_ood.detectors.make(vectors.model, "knn")
    with pytest.raises(InputError, match="must be a tensor, or a tuple or mapping"):
        fitted.score("image.png")


def test_before_fitting(vectors: Any) -> None:
    detector = tulip_ood.Tulip(vectors.model)
    for call in (
        lambda: detector.score(vectors.ood),
        lambda: detector.predict(vectors.ood),
        lambda: detector.report(),
        lambda: detector.set_threshold(false_alarm=0.1),
        lambda: detector.save("nowhere.safetensors"),
        lambda: detector.memory(),
    ):
        with pytest.raises(NotFittedError, match=r"call fit\(val_loader\) first"):
            call()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"score": "entropy"}, "choose from ent, msp, gen, mls, ebo, bound"),
        ({"n_samples": 0}, "n_samples must be a whole number of at least 1"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"epsilon": NAN}, "epsilon must be positive"),
        ({"delta": -1.0}, "delta must be positive"),
        ({"lam": -1.0}, "lam must be finite and not negative"),
        ({"j": INF}, "j must be finite and not negative"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ({"batch_size": 2.5}, "batch_size must be a whole number of at least 1, got 2.5"),
        ({"fit_memory": "2G"}, "fit_memory must be a whole number of at least 1, got '2G'"),
        ({"epsilon": "small"}, "epsilon must be a number, got 'small'"),
        ({"j": "1"}, "j must be a number, got '1'"),
        ({"device": "gpu"}, "device='gpu' cannot be used here: Expected one of cpu, cuda"),
        ({"scope": 3}, "scope must be a name or a list of globs, got 3"),
        ({"output": "logits"}, "output='logits' is a str: expected a function"),
        ({"task": "clustering"}, "unknown task 'clustering'"),
    ],
)
def test_arguments_that_make_no_sense(vectors: Any, arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tulip_ood.Tulip(vectors.model, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scope": "layer9.*"}, r"scope 'layer9.\*' fits no parameter; use all, head"),
        ({"layer_scale": {"body.*": 2.0}}, "layer_scale names 'body.*'"),
        ({"layer_scale": {"0.*": -1.0}}, "finite and not negative"),
        ({"layer_scale": lambda name: 0.0}, "nothing is perturbed"),
        ({"initial_mean": {"0.wieght": 1.0}}, "did you mean 0.weight"),
        ({"initial_mean": {"0.weight": torch.zeros(3)}}, r"has the shape \[3\]"),
    ],
)
def test_what_names_no_parameter(vectors: Any, arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tulip_ood.Tulip(vectors.model, **arguments).fit(vectors.loader(), recipe="balanced")


def test_numpy_inputs_are_welcome(fitted: Any, vectors: Any) -> None:
    assert torch.equal(fitted.score(vectors.ood.numpy()), fitted.score(vectors.ood))


def test_inputs_of_another_width_and_a_device_that_is_not_there(vectors: Any) -> None:
    detector = tulip_ood.detectors.MSP(vectors.model).fit(vectors.loader())
    with pytest.raises(InputError, match=r"shape \[N, 7\]; it was fitted on \[N, 2\]"):
        detector.score(torch.zeros(2, 7))
    with pytest.raises(InputError, match="cuda:99"):
        tulip_ood.Tulip(vectors.model, device="cuda:99")


def test_devices_that_cannot_be_used_leave_a_detector_where_it_was(vectors: Any) -> None:
    detector = tulip_ood.detectors.MSP(vectors.model).fit(vectors.loader())
    before = detector.score(vectors.ood)
    for device in ("meta", "cuda:99"):
        with pytest.raises(InputError, match=f"device='{device}' cannot be used here"):
            tulip_ood.Tulip(vectors.model, device=device)
        with pytest.raises(InputError, match=f"device='{device}' cannot be used here"):
            detector.to(device)
        assert torch.equal(detector.score(vectors.ood), before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.to("meta"), "meta device have no data"),
        (lambda x: x.to_sparse(), "must be plain tensors, got sparse_coo"),
        (lambda x: x.to(torch.complex64), "view_as_real"),
    ],
)
def test_tensors_that_cannot_be_read(vectors: Any, fitted: Any, change: Any, message: str) -> None:
    x, y = vectors.val
    with pytest.raises(InputError, match=message):
        fitted.score(change(vectors.ood))
    with pytest.raises(InputError, match=message):
        tulip_ood.detectors.MSP(vectors.model).fit([(change(x), y)])
    with pytest.raises(InputError, match=message):
        tulip_ood.detectors.KNN(vectors.model).fit([(x, y)], train=[(change(x), y)])


@pytest.mark.parametrize("arguments", [{"gamma": 0.0}, {"gamma": math.nan}, {"top": 0}])
def test_gen_needs_something_to_add_up(vectors: Any, arguments: Any) -> None:
    with pytest.raises(InputError, match="gen needs gamma > 0 and top ≥ 1"):
        tulip_ood.detectors.GEN(vectors.model, **arguments)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
@pytest.mark.parametrize("name", ["msp", "knn", "tulip", "tulip&knn"])
def test_a_few_inputs_again_and_again(vectors: Any, name: str) -> None:
    """Equal inputs are on one side of a split, so that there may be fewer folds than five."""
    x, y = vectors.val
    how = {"recipe": "balanced"} if name == "tulip" else {}
    four = y.sort(stable=True).indices[:: len(y) // 4][:4].repeat(25)
    detector = tulip_ood.detectors.make(name, vectors.model).fit([(x[four], y[four])], **how)
    assert detector.calibration.n_inputs == 100
    one = torch.zeros(100, dtype=torch.int64)
    with pytest.raises(InputError, match="all 100 validation inputs are the same"):
        tulip_ood.detectors.make(name, vectors.model).fit([(x[one], y[:100])], **how)
