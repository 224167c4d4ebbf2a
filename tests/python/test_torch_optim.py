# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme.torch.optim.AdamW against torch.optim.AdamW."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("gpunvme.torch", exc_type=ImportError,
                    reason="this build has no operators for PyTorch")

from torch import Tensor

import gpunvme.torch as ours
from gpunvme.torch.optim import AdamW
from test_torch_operators import DEVICES, DTYPES

ops = torch.ops.optimized
SHAPES = [(33, 17), (), (129,), (0, 3), (4, 3, 5, 2)]
OPTIONS = {"lr": 1e-2, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}


def parameters(dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[Tensor]:
    generator = torch.Generator().manual_seed(17)
    return [torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()
            for shape in SHAPES]


def set_gradients(step: int, *models: list[Tensor]) -> None:
    """The same of each model, in the types of its parameters."""
    generator = torch.Generator().manual_seed(step)
    for i, shape in enumerate(SHAPES):
        grad = torch.randn(shape, generator=generator).bfloat16()
        for model in models:
            model[i].grad = grad.to(model[i])


def run(optimizer: Any, model: list[Tensor], steps: range) -> None:
    for step in steps:
        set_gradients(step, model)
        optimizer.step()


def assert_close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_float32_parameters_become_those_of_pytorchs(device: str) -> None:
    mine, theirs = parameters(device=device), parameters(device=device)
    optimizer, reference = AdamW(mine, **OPTIONS), torch.optim.AdamW(theirs, **OPTIONS)
    run(optimizer, mine, range(20))
    run(reference, theirs, range(20))
    assert_close(mine, theirs)
    for p, q in zip(mine, theirs):
        for name in ("exp_avg", "exp_avg_sq"):
            assert_close(optimizer.state[p][name], reference.state[q][name])


def test_groups_have_options_of_their_own() -> None:
    found = []
    for kind in (AdamW, torch.optim.AdamW):
        model = parameters()
        optimizer = kind([{"params": model[:2], "lr": 0.1, "weight_decay": 0.0},
                          {"params": model[2:]}], **OPTIONS)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        for step in range(6):
            run(optimizer, model, range(step, step + 1))
            scheduler.step()
        found.append(model)
    assert_close(found[0], found[1])


def test_a_parameter_without_gradient_stays_and_counts_its_own_steps() -> None:
    found = []
    for kind in (AdamW, torch.optim.AdamW):
        model = parameters()
        optimizer = kind(model, **OPTIONS)
        before = model[0].detach().clone()
        for step in range(4):
            set_gradients(step, model)
            if step < 2:
                model[0].grad = None
            optimizer.step()
            assert step >= 2 or torch.equal(model[0], before)
        found.append(model)
    assert_close(found[0], found[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_16_bit_parameters_are_their_rounded_masters(dtype: torch.dtype, device: str) -> None:
    mine = parameters(dtype, device)
    reference = [p.detach().float().requires_grad_() for p in mine]
    optimizer = AdamW(mine, **OPTIONS)
    run(optimizer, mine, range(20))
    run(torch.optim.AdamW(reference, **OPTIONS), reference, range(20))
    masters = [optimizer.state[p]["master"] for p in mine]
    assert_close(masters, [p.detach() for p in reference])
    assert all(torch.equal(p, master.to(dtype)) for p, master in zip(mine, masters))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_without_masters_the_parameters_themselves_are_updated(dtype: torch.dtype) -> None:
    mine = parameters(dtype)
    optimizer = AdamW(mine, **OPTIONS, master_weights=False)
    set_gradients(0, mine)
    exact = [p.detach().float().requires_grad_() for p in mine]
    set_gradients(0, exact)
    optimizer.step()
    torch.optim.AdamW(exact, **OPTIONS).step()
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close([p.float() for p in mine], exact, rtol=2 * eps, atol=eps)
    assert all("master" not in optimizer.state[p] for p in mine)


@pytest.mark.parametrize("device", DEVICES)
def test_stochastic_rounding_moves_weights_on_the_average(device: str) -> None:
    """Steps of 1/40 of the distance between two weights."""
    moved = {}
    for stochastic in (True, False):
        p = torch.ones(100_000, dtype=torch.bfloat16, device=device, requires_grad=True)
        optimizer = AdamW([p], lr=1e-4, weight_decay=0.0, master_weights=False,
                          stochastic_rounding=stochastic)
        for _ in range(10):
            p.grad = torch.ones_like(p)
            optimizer.step()
        moved[stochastic] = 1 - p.float().mean().item()
    assert moved[False] == 0
    assert moved[True] == pytest.approx(1e-3, rel=0.05)  # 8 standard deviations


def test_a_seed_determines_how_weights_are_rounded() -> None:
    found = []
    for seed in (3, 3, 4):
        p = torch.ones(1000, dtype=torch.bfloat16, requires_grad=True)
        p.grad = torch.ones_like(p)
        AdamW([p], master_weights=False, stochastic_rounding=True, seed=seed).step()
        found.append(p)
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_are_clipped_as_by_pytorch_but_not_written(device: str) -> None:
    mine, theirs = parameters(device=device), parameters(device=device)
    mine[2] = mine[2].detach().bfloat16().requires_grad_()
    theirs[2] = theirs[2].detach().bfloat16().float().requires_grad_()
    optimizer = AdamW(mine, **OPTIONS, max_grad_norm=0.5)
    reference = torch.optim.AdamW(theirs, **OPTIONS)
    assert optimizer.grad_norm is None
    for step in range(3):
        set_gradients(step, mine, theirs)
        kept = mine[0].grad.clone()
        norm = torch.nn.utils.clip_grad_norm_(theirs, 0.5)
        optimizer.step()
        reference.step()
        assert_close(optimizer.grad_norm, norm)
        assert torch.equal(mine[0].grad, kept)
    mine[2] = optimizer.state[mine[2]]["master"]
    assert_close(mine, theirs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_the_norm_of_gradients_is_pytorchs(dtype: torch.dtype, device: str) -> None:
    grads = [p.detach() for p in parameters(dtype, device)]
    expected = torch.nn.utils.get_total_norm([g.double() for g in grads])
    torch.testing.assert_close(ops.grad_norm(grads).double(), expected, rtol=1e-5, atol=0)


def test_a_gradient_of_the_norm_is_refused() -> None:
    grad = torch.ones(3, requires_grad=True)
    with pytest.raises(NotImplementedError, match="grad_norm has no gradients"):
        ops.grad_norm([grad]).backward()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("stochastic", [True, False])
def test_a_state_that_was_saved_goes_on_with_the_same_bits(dtype: torch.dtype,
                                                           stochastic: bool) -> None:
    options = {**OPTIONS, "stochastic_rounding": stochastic, "master_weights": not stochastic}
    model = parameters(dtype)
    optimizer = AdamW(model, **options)
    run(optimizer, model, range(3))
    file = io.BytesIO()
    torch.save((model, optimizer.state_dict()), file)
    run(optimizer, model, range(3, 6))
    file.seek(0)
    again, state = torch.load(file)
    second = AdamW(again)
    second.load_state_dict(state)
    run(second, again, range(3, 6))
    assert all(torch.equal(p, q) for p, q in zip(model, again))


@pytest.mark.parametrize("kinds", [(AdamW, torch.optim.AdamW), (torch.optim.AdamW, AdamW)],
                         ids=["to PyTorch's", "from PyTorch's"])
def test_states_are_exchanged_with_pytorchs(kinds: tuple[Any, Any]) -> None:
    model, expected = parameters(), parameters()
    first = kinds[0](model, **OPTIONS)
    run(first, model, range(3))
    second = kinds[1](model)
    second.load_state_dict(first.state_dict())
    run(second, model, range(3, 6))
    run(torch.optim.AdamW(expected, **OPTIONS), expected, range(6))
    assert_close(model, expected)


def test_a_state_of_pytorchs_16_bit_moments_is_taken_into_float32() -> None:
    model = parameters(torch.bfloat16)
    theirs = torch.optim.AdamW(model)
    run(theirs, model, range(1))
    mine = AdamW(model)
    mine.load_state_dict(theirs.state_dict())
    run(mine, model, range(1, 2))
    assert {t.dtype for t in mine.state[model[0]].values() if isinstance(t, Tensor)} == {
        torch.float32}
    assert mine.state[model[0]]["step"] == 2


def test_a_state_of_amsgrad_is_refused() -> None:
    theirs = torch.optim.AdamW(parameters(), amsgrad=True)
    with pytest.raises(ValueError, match="amsgrad"):
        AdamW(parameters()).load_state_dict(theirs.state_dict())


def test_a_state_is_loaded_for_parameters_that_lie_in_another_order() -> None:
    contiguous = torch.linspace(-1, 1, 120).view(2, 3, 4, 5).requires_grad_()
    first = AdamW([contiguous], **OPTIONS)
    contiguous.grad = torch.linspace(2, 3, 120).view(2, 3, 4, 5)
    first.step()
    moved = contiguous.detach().clone(memory_format=torch.channels_last).requires_grad_()
    second = AdamW([moved], **OPTIONS)
    second.load_state_dict(first.state_dict())
    moved.grad = contiguous.grad
    first.step()
    second.step()
    assert torch.equal(moved, contiguous)


def test_hooks_before_loading_decide_what_is_loaded() -> None:
    first, second = AdamW(parameters()), AdamW(parameters())
    run(first, first.param_groups[0]["params"], range(1))

    def doubled(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        found = {i: {"step": 7, **{name: 2 * of[name] for name in ("exp_avg", "exp_avg_sq")}}
                 for i, of in state["state"].items()}
        return {**state, "state": found}

    second.register_load_state_dict_pre_hook(doubled)
    second.load_state_dict(first.state_dict())
    for found, saved in zip(second.state.values(), first.state.values()):
        assert found["step"] == 7
        assert torch.equal(found["exp_avg"], 2 * saved["exp_avg"])


def test_a_state_of_another_shape_is_a_value_error() -> None:
    row, matrix = torch.zeros(4, requires_grad=True), torch.zeros(3, 4, requires_grad=True)
    first, second = AdamW([row]), AdamW([matrix])
    row.grad, matrix.grad = torch.ones(4), torch.ones(3, 4)
    first.step()
    second.load_state_dict(first.state_dict())
    with pytest.raises(ValueError, match="shape and strides"):
        second.step()


def test_a_state_of_pytorchs_keeps_what_only_our_groups_have() -> None:
    model = parameters(torch.bfloat16)
    theirs = torch.optim.AdamW(model)
    run(theirs, model, range(1))
    mine = AdamW([{"params": model, "master_weights": False, "seed": 3}])
    mine.load_state_dict(theirs.state_dict())
    run(mine, model, range(1, 2))
    assert mine.param_groups[0]["seed"] == 3
    assert "master" not in mine.state[model[0]]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))],
                         ids=["deepcopy", "pickle"])
def test_a_copy_goes_on_with_the_same_bits(copied: Callable[[AdamW], AdamW]) -> None:
    model = parameters()
    optimizer = AdamW(model, **OPTIONS, max_grad_norm=0.5)
    run(optimizer, model, range(3))
    second = copied(optimizer)
    again = second.param_groups[0]["params"]
    assert torch.equal(second.grad_norm, optimizer.grad_norm)
    run(optimizer, model, range(3, 6))
    run(second, again, range(3, 6))
    assert all(torch.equal(p, q) for p, q in zip(model, again))


def test_a_group_that_was_refused_is_not_there() -> None:
    model = parameters()
    optimizer = AdamW(model)
    with pytest.raises(ValueError, match="float64"):
        optimizer.add_param_group({"params": torch.zeros(2, dtype=torch.float64)})
    assert len(optimizer.param_groups) == 1
    run(optimizer, model, range(1))


def test_a_step_that_was_refused_does_not_count() -> None:
    p = torch.ones(3, requires_grad=True)
    table = torch.nn.Embedding(5, 3, sparse=True)
    optimizer = AdamW([p, *table.parameters()])
    p.grad = torch.ones(3)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse"):
        optimizer.step()
    table.weight.grad = None
    optimizer.step()
    assert optimizer.state[p]["step"] == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_norm_over_a_gpu_and_the_cpu_is_there_before_the_cpu_takes_it() -> None:
    """Work is queued on the GPU before the norm, so that a copy without a wait would be late."""
    on_gpu = torch.ones(3, device="cuda", requires_grad=True)
    on_cpu = torch.ones(3, requires_grad=True)
    optimizer = AdamW([on_gpu, on_cpu], lr=1.0, betas=(0.0, 0.0), eps=1.0, weight_decay=0.0,
                      max_grad_norm=1.0)
    busy = torch.ones(8192, 8192, device="cuda")
    for _ in range(10):
        busy @ busy
    on_gpu.grad, on_cpu.grad = torch.full_like(on_gpu, 4.0), torch.full_like(on_cpu, 4.0)
    optimizer.step()
    clipped = 1 / 6 ** 0.5
    expected = torch.full((3,), 1 - clipped / (clipped + 1))
    torch.testing.assert_close(on_cpu.detach(), expected)
    torch.testing.assert_close(on_gpu.detach().cpu(), expected)


def test_parameters_and_gradients_may_lie_in_any_order() -> None:
    found = []
    for kind in (AdamW, torch.optim.AdamW):
        p = torch.linspace(-1, 1, 120).view(2, 3, 4, 5)
        p = p.to(memory_format=torch.channels_last).requires_grad_()
        optimizer = kind([p], **OPTIONS)
        for grad in (torch.linspace(2, 3, 120).view(2, 3, 4, 5),
                     torch.linspace(2, 3, 120).view(5, 4, 3, 2).permute(3, 2, 1, 0)):
            p.grad = grad
            optimizer.step()
        found.append(p)
    assert_close(found[0], found[1])


def test_a_parameter_with_gaps_is_a_value_error() -> None:
    p = torch.zeros(4, 6)[:, :3].requires_grad_()
    p.grad = torch.ones(4, 3)
    with pytest.raises(ValueError, match="fill its memory|strides"):
        AdamW([p]).step()


@pytest.mark.parametrize("call, text", [
    (lambda: AdamW([torch.zeros(2, dtype=torch.float64, requires_grad=True)]), "float64"),
    (lambda: AdamW([torch.zeros(2, requires_grad=True)], max_grad_norm=0.0), "max_grad_norm"),
    (lambda: ops.grad_norm([torch.zeros(2), torch.zeros(2).half()]), "different types"),
    (lambda: adamw(weights=[torch.zeros(3)]), "shape and strides"),
    (lambda: adamw(exp_avgs=[torch.zeros(2).half()]), "exp_avgs are not float32"),
    (lambda: adamw(masters=[torch.zeros(2)] * 2), "2 masters for 1 weights"),
    (lambda: adamw(grad_scale=torch.ones(2)), "grad_scale"),
    (lambda: adamw(step=0), "step is 0"),
    (lambda: adamw(lr=-1.0), "lr is -1"),
    (lambda: adamw(stochastic=True), "bf16"),
    (lambda: adamw(weights=[torch.zeros(2, requires_grad=True)]), "no_grad"),
])
def test_bad_arguments_are_value_errors(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()


def test_sparse_gradients_are_refused() -> None:
    table = torch.nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse"):
        AdamW(table.parameters()).step()


def adamw(**changed: Any) -> None:
    arguments = {"grads": [torch.ones(2)], "weights": [torch.zeros(2)], "masters": [],
                 "exp_avgs": [torch.zeros(2)], "exp_avg_sqs": [torch.zeros(2)], "grad_scale": None,
                 "step": 1, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8,
                 "weight_decay": 0.01, "stochastic": False, "seed": 0} | changed
    ops.adamw_(*arguments.values())


def test_autograd_sees_that_weights_have_changed() -> None:
    p = torch.ones(3, requires_grad=True)
    y = p.square().sum()
    p.grad = torch.ones(3)
    AdamW([p]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_a_closure_computes_the_loss_with_gradients() -> None:
    p = torch.ones(3, requires_grad=True)
    optimizer = AdamW([p])

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3
    assert (p < 1).all()


def test_opcheck_passes() -> None:
    tensors = [[torch.rand(3, 4), torch.rand(5)] for _ in range(4)]
    torch.library.opcheck(ops.grad_norm.default, (tensors[0],))
    torch.library.opcheck(ops.adamw_.default, (
        tensors[0], tensors[1], [], *tensors[2:], torch.tensor(0.5), 1, 1e-3, 0.9, 0.999, 1e-8,
        0.01))


@pytest.mark.parametrize("device", DEVICES)
def test_a_model_of_these_operators_learns(device: str) -> None:
    """Each number is followed by the next."""
    torch.manual_seed(17)
    table, up, down = (torch.randn(size, device=device).mul(0.1).bfloat16().requires_grad_()
                       for size in ((12, 32), (128, 32), (12, 64)))
    scale = torch.ones(32, device=device, requires_grad=True)
    model = [table, up, down, scale]
    optimizer = AdamW(model, lr=1e-2, max_grad_norm=1.0)
    numbers = torch.arange(12, device=device)
    losses = []
    for _ in range(60):
        x = ours.rms_norm(ours.embedding(numbers, table), (32,), scale)
        hidden = ours.swiglu(*torch.ops.optimized.linear(x, up).chunk(2, -1))
        loss = ours.cross_entropy(torch.ops.optimized.linear(hidden, down), (numbers + 1) % 12)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 2 and losses[-1] < 0.2
