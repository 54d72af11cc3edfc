"""Tensors change the order of their numbers in memory, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from threadcast.capture.graph.capture import capture_forward
from threadcast.runtime.backends.weight_versions import WeightVersions
from threadcast.runtime.doors.optimized_model import Formatted
from threadcast.runtime.plans.model_format import ModelFormat, formats_of, formats_with_equal_results
from threadcast.runtime.plans.variant import MemoryFormat

IMAGES = torch.randn(2, 3, 4, 5)


@pytest.fixture
def model() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(24, 2))


def test_parameters_and_their_state_go_to_channels_last_and_back(model: nn.Sequential) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(IMAGES).sum().backward()
    optimizer.step()
    weight = model[0].weight
    tensors = [weight, optimizer.state[weight]["momentum_buffer"]]
    values, strides, changes = [tensor.clone() for tensor in tensors], [tensor.stride() for tensor in tensors], []
    owner = ModelFormat(model, optimizer, changed=lambda: changes.append(1))
    owner.set(MemoryFormat.AS_GIVEN)
    assert not changes
    owner.set(MemoryFormat.CHANNELS_LAST)
    owner.set(MemoryFormat.CHANNELS_LAST)
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in tensors)
    assert all(map(torch.equal, tensors, values))
    owner.set(MemoryFormat.AS_GIVEN)
    assert [tensor.stride() for tensor in tensors] == strides
    assert all(map(torch.equal, tensors, values))
    assert len(changes) == 2
    assert model[0].weight is weight


def test_arguments_follow_the_current_format(model: nn.Sequential) -> None:
    owner = ModelFormat(model)
    assert owner.arguments({"x": IMAGES})["x"] is IMAGES
    owner.set(MemoryFormat.CHANNELS_LAST)
    x, count, name = owner.arguments((IMAGES, torch.ones(1, 2, 3, 4, dtype=torch.int64), "name"))
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x, IMAGES)
    assert count.is_contiguous()
    assert name == "name"


def test_parameters_that_were_replaced_are_as_given_after_a_reset(model: nn.Sequential) -> None:
    owner = ModelFormat(model)
    owner.set(MemoryFormat.CHANNELS_LAST)
    model[0] = nn.Conv2d(3, 4, 3)
    owner.reset()
    assert owner.current is MemoryFormat.AS_GIVEN
    owner.set(MemoryFormat.CHANNELS_LAST)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


def optimizers(parameters: Any) -> list[torch.optim.Optimizer]:
    return [
        torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        torch.optim.Adam(parameters, amsgrad=True),
        torch.optim.AdamW(parameters, fused=True),
    ]


def test_a_model_that_shares_nothing_may_change(model: nn.Sequential) -> None:
    model.append(nn.Conv2d(1, 1, 1)).append(model[-1])  # one parameter in two places
    averaged = copy.deepcopy(model)
    for optimizer in optimizers(list(model.parameters())):
        model[:3](IMAGES).sum().backward()
        optimizer.step()
        for owner in (ModelFormat(model, optimizer), ModelFormat(averaged)):
            for memory_format in (*MemoryFormat, MemoryFormat.AS_GIVEN):
                assert owner.why_fixed() is None
                owner.set(memory_format)


def kept_state(model: nn.Sequential) -> Any:
    return model.state_dict()


def view_in_numpy(model: nn.Sequential) -> Any:
    return model[0].weight.detach().numpy()


def one_vector(model: nn.Sequential) -> Any:
    vector = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(vector, model.parameters())
    return vector


def shared_weight(model: nn.Sequential) -> Any:
    model.append(nn.Conv2d(3, 4, 3))
    model[-1].weight.data = model[0].weight.data


def expanded_weight(model: nn.Sequential) -> Any:
    model[0].weight.data = torch.ones(1, 1, 3, 3).expand(4, 3, 3, 3)


def made_for_inference(model: nn.Sequential) -> Any:
    with torch.inference_mode():
        model[0] = nn.Conv2d(3, 4, 3)


SHARES = [
    kept_state, view_in_numpy, one_vector, shared_weight, expanded_weight, made_for_inference, nn.Module.share_memory,
]  # fmt: skip


@pytest.mark.parametrize("share", SHARES)
def test_weights_that_share_memory_are_fixed(share: Callable[[nn.Module], Any], model: nn.Sequential) -> None:
    owner = ModelFormat(model)
    assert owner.why_fixed() is None
    kept = share(model)
    owner.reset()  # as where layers were exchanged
    assert "shares its memory" in str(owner.why_fixed())
    del kept


def test_optimizer_state_that_shares_memory_is_fixed(model: nn.Sequential) -> None:
    for optimizer in optimizers(list(model.parameters())):
        model(IMAGES).sum().backward()
        optimizer.step()
        state = optimizer.state[model[0].weight]
        kept = [value.detach() for value in state.values() if isinstance(value, Tensor) and value.dim() == 4]
        assert "shares its memory" in str(ModelFormat(model, optimizer).why_fixed())
        kept.clear()
        assert ModelFormat(model, optimizer).why_fixed() is None


def test_views_that_look_for_writes_to_weights_count_as_no_sharing(model: nn.Sequential) -> None:
    owner = ModelFormat(model)
    versions = WeightVersions(model.parameters())
    assert owner.why_fixed() is None
    owner.set(MemoryFormat.CHANNELS_LAST)
    assert versions.unchanged()
    assert owner.why_fixed() is None


def test_a_model_with_gradients_is_fixed_but_for_its_own_optimizer(model: nn.Sequential) -> None:
    model(IMAGES).sum().backward()
    assert "has a gradient" in str(ModelFormat(model).why_fixed())
    assert ModelFormat(model, optimizers(list(model.parameters()))[0]).why_fixed() is None


@pytest.mark.parametrize("frozen", [False, True])
def test_weights_that_another_optimizer_may_train_keep_their_order(frozen: bool, model: nn.Sequential) -> None:
    """Frozen ones too: the loop may freeze them for this step only."""
    weight = model[0].weight.requires_grad_(not frozen)
    strides = weight.stride()
    owner = ModelFormat(model, torch.optim.SGD(model[2].parameters(), lr=0.1))
    for memory_format in (MemoryFormat.CHANNELS_LAST, MemoryFormat.AS_GIVEN):
        owner.set(memory_format)
        assert weight.stride() == strides


@pytest.mark.parametrize("share", [kept_state, view_in_numpy, nn.Module.share_memory])
def test_a_weight_that_shares_its_memory_by_now_is_left_alone(
    share: Callable[[nn.Module], Any], model: nn.Sequential
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(IMAGES).sum().backward()
    optimizer.step()
    owner = ModelFormat(model, optimizer)
    owner.set(MemoryFormat.CHANNELS_LAST)
    kept, weight = share(model), model[0].weight
    place, strides = weight.data_ptr(), weight.stride()
    owner.set(MemoryFormat.AS_GIVEN)
    assert (weight.data_ptr(), weight.stride()) == (place, strides)
    assert optimizer.state[weight]["momentum_buffer"].stride() == strides
    del kept


@pytest.mark.parametrize("sides", [(4, 5, 3, 3), (4, 3, 3, 3), (4, 27)])
def test_a_weight_that_got_other_data_is_left_alone(sides: tuple[int, ...], model: nn.Sequential) -> None:
    owner = ModelFormat(model)
    owner.set(MemoryFormat.CHANNELS_LAST)
    other = torch.randn(sides)
    model[0].weight.data = other
    owner.set(MemoryFormat.AS_GIVEN)
    assert model[0].weight.data_ptr() == other.data_ptr()
    assert model[0].weight.stride() == other.stride()


def test_weights_that_changed_in_inference_mode_can_be_trained(model: nn.Sequential) -> None:
    owner = ModelFormat(model)
    for memory_format in (MemoryFormat.CHANNELS_LAST, MemoryFormat.AS_GIVEN):
        with torch.inference_mode():
            owner.set(memory_format)
        assert not any(parameter.is_inference() for parameter in model.parameters())
        model.zero_grad()
        model(IMAGES).sum().backward()


class OwnConvolution(nn.Module):
    """Convolves without a layer that does, as traced models do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(images, self.weight)


@pytest.mark.parametrize(
    ("model", "example", "formats"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3)), IMAGES, 2),
        (OwnConvolution(), IMAGES, 2),
        (nn.Sequential(nn.Conv2d(3, 4, 3)), IMAGES[0], 1),
        (nn.Linear(5, 1), IMAGES, 1),
        (None, IMAGES, 1),
    ],
)
def test_channels_last_is_tried_where_images_meet_convolutions(
    model: nn.Module | None, example: torch.Tensor, formats: int
) -> None:
    assert len(formats_of(model, [example])) == formats


@pytest.mark.parametrize("memory_format", MemoryFormat)
@pytest.mark.parametrize(
    ("function", "equal"),
    [
        (lambda x, of: of(x).relu_(), True),
        (lambda x, of: of(x * 1), True),
        (lambda x, of: of(x.clone().clamp_(0)), True),
        (lambda x, of: (of(x), x.shape, of[0].bias, of[2].weight), True),
        (lambda x, of: of(x.clamp_(0)), False),
        (lambda x, of: (of(x), x[0].zero_())[0], False),
        (lambda x, of: (of(x), x.transpose(1, 2)), False),
        (lambda x, of: (of(x), of[0].weight.detach()), False),
        (lambda x, of: nn.functional.dropout(of(x)), False),
        (lambda x, of: nn.functional.dropout(of[0](x).flatten(2).transpose(1, 2)), False),
    ],
)
def test_another_format_is_for_calls_without_effects_on_what_it_copies(
    function: Callable[[Tensor, nn.Module], Any], equal: bool, memory_format: MemoryFormat, model: nn.Sequential
) -> None:
    class Calling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model

        def forward(self, x: Tensor) -> Any:
            return function(x, self.layers)

    caller = Calling()
    owner = ModelFormat(caller)
    owner.set(memory_format)
    captured = capture_forward(Formatted(caller, owner), (IMAGES.clone(),), {})
    formats = formats_with_equal_results(captured, tuple(MemoryFormat))
    assert formats == (tuple(MemoryFormat) if equal else (MemoryFormat.AS_GIVEN,))
