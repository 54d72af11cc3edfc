"""Every built-in network: shapes, gradients, seeds, and the sizes that the literature gives."""

from __future__ import annotations

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from threadcast import networks

OUTPUT_SHAPES = {
    "lenet": (4, 10),
    "alexnet": (4, 10),
    "caffenet": (4, 10),
    "vgg16": (4, 10),
    "googlenet": (4, 10),
    "inception_v3": (4, 10),
    "resnet18": (4, 10),
    "resnet50": (4, 10),
    "dcgan_generator": (4, 1, 16, 16),
    "dcgan_discriminator": (4,),
    "lstm": (4, 10),
    "phased_lstm": (4, 10),
    "pathnet": (4, 10),
    "transformer": (2 * 8, 50),
    "inception_block": (4, 10),
}

PARAMETERS = [
    ("lenet", "paper", 431_080),  # Caffe's LeNet
    ("alexnet", "paper", 60_965_224),  # two-tower AlexNet, as Caffe's bvlc_alexnet
    ("caffenet", "paper", 60_965_224),
    ("vgg16", "paper", 138_357_544),
    ("googlenet", "paper", 6_624_904),  # with batch normalisation, without auxiliary heads
    ("inception_v3", "paper", 23_834_568),  # without its auxiliary head
    ("resnet18", "large", 11_689_512),
    ("resnet50", "large", 25_557_032),
    ("dcgan_generator", "medium", 3_576_704 + 3),  # 64 filters as commonly trained, and an output bias
    ("lstm", "paper", 4_651_600),  # the small PTB model's 4.65 million
]

# Tang et al. 2018, table 1: sequence length and neurons; image side and filters; image side and width factor.
GRAPHI_SIZES = [
    ("lstm", {"small": (20, 128), "medium": (30, 512), "large": (40, 1024)}),
    ("phased_lstm", {"small": (20, 128), "medium": (30, 512), "large": (40, 1024)}),
    ("pathnet", {"small": (32, 16), "medium": (48, 32), "large": (64, 48)}),
    ("googlenet", {"small": (128, 1), "medium": (192, 2), "large": (256, 4)}),
]

EVERY_NETWORK = pytest.mark.parametrize("name", networks.names())
EVERY_SIZE = pytest.mark.parametrize(
    ("name", "size"), [(name, size) for name in networks.names() for size in networks.sizes(name)]
)


def training_loss(workload: networks.Workload, *, seed: int = 0) -> torch.Tensor:
    """The loss with dropout drawn from `seed`."""
    assert workload.loss is not None
    assert workload.target is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return workload.loss(workload.model(*workload.inputs), workload.target)


@EVERY_NETWORK
def test_tiny_output_has_the_documented_shape(name: str) -> None:
    workload = networks.load(name)
    assert tuple(workload.model(*workload.inputs).shape) == OUTPUT_SHAPES[name]
    assert workload.batch == networks.options(name, "tiny")["batch"]


@EVERY_NETWORK
def test_a_step_down_the_gradient_lowers_the_loss_and_every_parameter_takes_part(name: str) -> None:
    workload = networks.load(name)
    parameters = dict(workload.model.named_parameters())
    before = training_loss(workload)
    gradients = torch.autograd.grad(before, list(parameters.values()))
    for parameter_name, gradient in zip(parameters, gradients, strict=True):
        assert gradient.isfinite().all(), parameter_name
        assert gradient.abs().max() > 0, parameter_name
    # A step that lowers a linear loss by one part in a thousand.
    rate = 1e-3 * before.item() / sum(float(gradient.square().sum()) for gradient in gradients)
    with torch.no_grad():
        for parameter, gradient in zip(parameters.values(), gradients, strict=True):
            parameter -= rate * gradient
    fall = 1 - training_loss(workload).item() / before.item()
    assert fall == pytest.approx(1e-3, rel=0.5)


def test_each_lstm_cell_has_its_own_operations() -> None:
    options = networks.options("lstm", "small")
    calls = capture_step(networks.load("lstm", "small"))
    cells = options["steps"] * 4
    assert calls.count("sigmoid.default") == 3 * cells
    assert calls.count("tanh.default") == 2 * cells
    assert calls.count("addmm.default") == cells + 1  # and the classifier
    assert 4_000 <= len(calls) <= 5_000


@EVERY_NETWORK
def test_same_seed_gives_the_same_tensors_and_another_seed_others(name: str) -> None:
    before = torch.get_rng_state()
    first, again, other = (networks.load(name, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(before, torch.get_rng_state()), "the caller's state is as it was"
    state, same = first.model.state_dict(), again.model.state_dict()
    assert all(torch.equal(state[key], same[key]) for key in state)
    assert all(torch.equal(a, b) for a, b in zip(first.inputs, again.inputs, strict=True))
    assert first.target is not None
    assert again.target is not None
    assert torch.equal(first.target, again.target)
    assert not all(torch.equal(state[key], value) for key, value in other.model.state_dict().items())


@pytest.mark.parametrize(("name", "size", "count"), PARAMETERS)
def test_full_size_networks_have_the_literatures_parameter_counts(name: str, size: str, count: int) -> None:
    with torch.device("meta"):
        workload = networks.load(name, size)
    assert sum(parameter.numel() for parameter in workload.model.parameters()) == count


@pytest.mark.parametrize(("name", "table"), GRAPHI_SIZES)
def test_sizes_are_graphis(name: str, table: dict[str, tuple[int, int]]) -> None:
    for size, expected in table.items():
        options = networks.options(name, size)
        assert (options.get("steps") or options["side"], options["width"]) == expected
        assert options["batch"] == (32 if name == "googlenet" else 64)


@EVERY_SIZE
def test_every_size_runs_forward_on_shapes_alone(name: str, size: str) -> None:
    with torch.device("meta"):
        workload = networks.load(name, size)
        loss = training_loss(workload)
    assert loss.shape == ()


@EVERY_NETWORK
def test_batch_can_be_chosen(name: str) -> None:
    workload = networks.load(name, batch=3)
    assert workload.batch == 3
    assert 3 in workload.inputs[0].shape
    assert math.isfinite(training_loss(workload).item())


def capture_step(workload: networks.Workload) -> list[str]:
    """The names of the aten operations of one training step with an SGD update, in order."""
    model, loss = workload.model, workload.loss
    assert loss is not None

    def step(
        parameters: dict[str, torch.Tensor],
        buffers: dict[str, torch.Tensor],
        inputs: tuple[torch.Tensor, ...],
        target: torch.Tensor,
    ) -> list[torch.Tensor]:
        output = torch.func.functional_call(model, {**parameters, **buffers}, inputs)
        gradients = torch.autograd.grad(loss(output, target), list(parameters.values()))
        return [value.detach() - 0.1 * gradient for value, gradient in zip(parameters.values(), gradients, strict=True)]

    graph = make_fx(step, tracing_mode="fake")(
        dict(model.named_parameters()), dict(model.named_buffers()), workload.inputs, workload.target
    ).graph
    calls = [node.target for node in graph.nodes if node.op == "call_function"]
    return [str(call).removeprefix("aten.") for call in calls if isinstance(call, torch._ops.OpOverload)]
