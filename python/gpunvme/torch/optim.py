# SPDX-License-Identifier: BSD-3-Clause
# mypy: allow-untyped-calls, allow-untyped-decorators, allow-subclassing-any
# mypy: disable-error-code="import-not-found"
"""Optimizers made of ``torch.ops.optimized``: AdamW of all tensors at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import register_fake

from ._registration import optimized, refuse_second_gradient

__all__ = ["AdamW"]

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_MOST = (1 << 63) - 1  # of the operator's seed
_FLOATS = ("exp_avg", "exp_avg_sq", "master")  # of the state; float32 whatever the parameter is


class AdamW(torch.optim.Optimizer):
    """``torch.optim.AdamW``, by one call for all parameters that have a type and a device.

    Arguments and state have the names of PyTorch's, and each loads the other's state_dict. Moments
    are float32 whatever the type of a parameter. Of float16 and bfloat16 parameters the state has
    a float32 copy, ``master``, which is updated and then rounded; without ``master_weights`` the
    parameters themselves are updated. ``stochastic_rounding`` rounds bfloat16 parameters up or down
    so that they are right on the average: then they need no master. Its random numbers depend on
    ``seed``, the step and the element alone.

    ``max_grad_norm`` scales all gradients together so that their norm is at most that, as
    torch.nn.utils.clip_grad_norm_() does, but without writing them; ``grad_norm`` is the norm that
    the last step found, a float32 tensor, and None before the first. It waits for no GPU.

    If you load other weights into the model, load the state that belongs to them as well, or make a
    new optimizer: masters would overwrite them. Parameters may lie in any order of dimensions, but
    without gaps. ValueError: a parameter of another type. There are no ``amsgrad``, ``maximize``,
    ``capturable`` and ``differentiable``, no sparse gradients and no DTensors; a step can't be
    captured into a CUDA graph, as its number is the host's.
    """

    grad_norm: Tensor | None

    def __init__(self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, *, master_weights: bool = True,
                 stochastic_rounding: bool = False, seed: int = 0,
                 max_grad_norm: float | None = None) -> None:
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm {max_grad_norm} is not positive")
        super().__init__(params, {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "master_weights": master_weights, "stochastic_rounding": stochastic_rounding,
            "seed": seed})
        self.max_grad_norm = max_grad_norm
        self.grad_norm = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if p.dtype not in _DTYPES:
                self.param_groups.pop()
                raise ValueError(f"a parameter of {p.dtype}: float32, float16 and bfloat16 are "
                                 "known")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates all parameters that have a gradient; returns what ``closure`` does."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        calls = [(group, key, list(zip(*found))) for group in self.param_groups
                 for key, found in self._together(group).items()]
        scale = self._scale([found[1] for _, _, found in calls])
        for i, (group, key, (states, grads, weights, m, v, *masters)) in enumerate(calls):
            torch.ops.optimized.adamw_(
                grads, weights, masters[0] if masters else [], m, v,
                None if scale is None else _moved(scale, key.device), key.step,
                float(group["lr"]), *group["betas"], group["eps"], group["weight_decay"],
                group["stochastic_rounding"] and key.dtype == torch.bfloat16,
                (group["seed"] + i) & _MOST)  # tensors are counted from 0 in each call
            for state in states:
                state["step"] = key.step
        return loss

    def _together(self, group: dict[str, Any]) -> dict[_Key, list[tuple[Any, ...]]]:
        """(state, gradient, parameter, moments and perhaps master) of what one call can update."""
        found: dict[_Key, list[tuple[Any, ...]]] = defaultdict(list)
        for p in group["params"]:
            if p.grad is None:
                continue
            if p.grad.is_sparse:
                raise ValueError("AdamW takes no sparse gradients")
            has_master = group["master_weights"] and p.dtype != torch.float32
            state = self._state_of(p, has_master)
            of_p = [state, _like(p, p.grad), p, state["exp_avg"], state["exp_avg_sq"]]
            if has_master:
                of_p.append(state["master"])
            found[_Key(p.device, p.dtype, p.grad.dtype, state["step"] + 1)].append(tuple(of_p))
        return found

    def _state_of(self, p: Tensor, has_master: bool) -> dict[str, Any]:
        state: dict[str, Any] = self.state[p]
        if "step" not in state:
            state["step"] = 0
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(p, dtype=torch.float32)
        if has_master and "master" not in state:
            state["master"] = p.detach().to(torch.float32)
        return state

    def _scale(self, grads: list[tuple[Tensor, ...]]) -> Tensor | None:
        if self.max_grad_norm is None or not grads:
            return None
        norms = [torch.ops.optimized.grad_norm(of_a_call) for of_a_call in grads]
        if len(norms) > 1:
            norms = [torch.stack([norm.to(norms[0].device) for norm in norms]).norm()]
        self.grad_norm = norms[0]
        scale: Tensor = (self.max_grad_norm / (norms[0] + 1e-6)).clamp(max=1.0)
        return scale

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state of this class or of ``torch.optim.AdamW``."""
        for group in state_dict["param_groups"]:
            if group.get("amsgrad") or group.get("maximize"):
                raise ValueError("AdamW has neither amsgrad nor maximize")
        loaded: list[dict[str, Any]] = []  # what hooks before this one have made of it
        hook = self.register_load_state_dict_pre_hook(lambda _, found: loaded.append(found))
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        state_dict = loaded[0]
        saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        mine = chain.from_iterable(group["params"] for group in self.param_groups)
        for key, p in zip(saved, mine):
            found = state_dict["state"].get(key, {})
            if "step" in found:
                self.state[p]["step"] = int(found["step"])
            for name in _FLOATS:
                if name in found:  # PyTorch has made them of the parameter's type
                    self.state[p][name] = _like(p, found[name].to(p.device, torch.float32))

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles have."""
        return {**super().__getstate__(), "max_grad_norm": self.max_grad_norm,
                "grad_norm": self.grad_norm}

    def __setstate__(self, state: dict[str, Any]) -> None:
        before = self.__dict__.get("param_groups", state["param_groups"])
        super().__setstate__(state)
        for group, own in zip(self.param_groups, before):  # PyTorch's lack ours
            for name, value in self.defaults.items():
                group.setdefault(name, own.get(name, value))


class _Key(NamedTuple):
    """What the tensors of a call have in common."""

    device: torch.device
    dtype: torch.dtype
    grad_dtype: torch.dtype
    step: int


def _like(p: Tensor, t: Tensor) -> Tensor:
    """A tensor of the parameter's shape, with the order of elements that the parameter has."""
    if t.stride() == p.stride() or t.shape != p.shape:  # another shape is refused by the operator
        return t
    return torch.empty_like(p, dtype=t.dtype).copy_(t)


def _moved(t: Tensor, device: torch.device) -> Tensor:
    """A copy to a GPU is in the order of streams; one to the CPU must be there on return."""
    return t.to(device, non_blocking=device.type != "cpu")


@register_fake("optimized::adamw_")
def _(*_: Any) -> None:
    return None


@register_fake("optimized::grad_norm")
def _(grads: list[Tensor]) -> Tensor:
    return grads[0].new_empty((), dtype=torch.float32)


refuse_second_gradient("grad_norm")


def _adamw_in_place(keyset: Any, grads: list[Tensor], weights: list[Tensor], masters: list[Tensor],
                    exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor], *options: Any) -> None:
    """Tells autograd that the tensors have changed, as it knows of PyTorch's own operators."""
    written = [*weights, *masters, *exp_avgs, *exp_avg_sqs]
    if torch.is_grad_enabled() and any(t.requires_grad for t in written):
        raise ValueError("optimized::adamw_: changing weights that require gradients would make "
                         "them wrong: use torch.no_grad()")
    torch.ops.optimized.adamw_.default.redispatch(
        keyset & torch._C._after_ADInplaceOrView_keyset, grads, weights, masters, exp_avgs,
        exp_avg_sqs, *options)
    torch.autograd.graph.increment_version(written)


optimized.impl("adamw_", _adamw_in_place, "ADInplaceOrView", with_keyset=True)
