"""Modules and optimisers of PyTorch's databases, trained a few steps on one side.

Answers with outcomes, like variants.py: parameters, buffers, gradients and results of each step.
"""

import inspect
import warnings

import torch
from torch.utils._pytree import tree_leaves

from .outcome import observe
from .variants import cotangents_of

SEED = 10


# --- modules ------------------------------------------------------------------------------------


def module_infos():
    from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db}


def module_outcomes(side, name, dtype, training, limit=None):
    """An outcome of each input of the module: two steps of training, or one of evaluation."""
    info = module_infos()[name]
    torch.manual_seed(SEED)
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=training, training=training
    )
    return [run_module(side, info, given, dtype, training) for given in list(inputs)[:limit]]


def run_module(side, info, given, dtype, training):
    torch.manual_seed(SEED)
    constructor = given.constructor_input
    module = info.module_cls(*constructor.args, **constructor.kwargs).to(dtype)
    if given.forward_input is None:
        return None
    # A copy also where it is there already, so that its history is the same on every side.
    module._apply(lambda tensor: tensor.to(side.name, copy=True))
    module.train(training)
    place = side.placement()
    args, kwargs = torch.utils._pytree.tree_map(
        place, (tuple(given.forward_input.args), dict(given.forward_input.kwargs))
    )
    inputs = [
        leaf
        for leaf in tree_leaves((args, kwargs))
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    side.seed(SEED)

    def call():
        seen = []
        for step in range(2 if training else 1):
            with torch.set_grad_enabled(training):
                out = module(*args, **kwargs)
            seen.append(out)
            roots = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
            roots = [t for t in roots if t.requires_grad]
            if not roots:
                continue
            parameters = [p for p in module.parameters() if p.requires_grad]
            grads = torch.autograd.grad(
                roots, parameters + inputs, cotangents_of(side, roots, step), allow_unused=True
            )
            seen.append(grads)
            with torch.no_grad():
                for parameter, grad in zip(parameters, grads):
                    if grad is not None:
                        parameter.sub_(grad, alpha=0.01)
        return seen, dict(module.state_dict())

    return observe(side, call, (args, kwargs))


def made_on_the_side(side, name, dtype, limit=None):
    """Modules that take a device in their constructor, made there: the values of their parameters."""
    info = module_infos()[name]
    if "device" not in inspect.signature(info.module_cls.__init__).parameters or info.is_lazy:
        return []
    torch.manual_seed(SEED)
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=False, training=True
    )
    outcomes = []
    for given in list(inputs)[:limit]:
        constructor = given.constructor_input
        kwargs = dict(constructor.kwargs, device=side.name, dtype=dtype)
        side.seed(SEED)
        outcomes.append(
            observe(
                side,
                lambda: dict(info.module_cls(*constructor.args, **kwargs).state_dict()),
                (),
            )
        )
    return outcomes


# --- optimisers ---------------------------------------------------------------------------------

STEPS = 5


def optimizer_infos():
    from torch.testing._internal.common_optimizers import optim_db

    return {info.optim_cls.__name__: info for info in optim_db}


def implementations(info, device_type):
    """{name: keyword arguments} of the ways in which the optimiser can be asked to work."""
    ways = {"default": {}}
    if "foreach" in info.supported_impls:
        ways = {"forloop": {"foreach": False}, "foreach": {"foreach": True}}
    if "fused" in info.supported_impls and device_type in info.supports_fused_on:
        ways["fused"] = {"fused": True}
    if "differentiable" in info.supported_impls:
        ways["differentiable"] = {"differentiable": True}
    if info.has_capturable_arg and device_type != "cpu":
        ways["capturable"] = {"capturable": True}
    return ways


def optimizer_outcomes(side, name, way, device_type):
    info = optimizer_infos()[name]
    more = implementations(info, device_type)[way]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        configurations = info.optim_inputs_func(device="cpu")
        return [run_optimizer(side, info, given.kwargs | more) for given in configurations]


def model_for(info):
    torch.manual_seed(SEED)
    if info.only_supports_sparse_grads:
        return torch.nn.Embedding(7, 5, sparse=True), torch.randint(0, 7, (4,))
    layers = [torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)]
    if info.optim_cls.__name__ == "Muon":
        for layer in layers[::2]:
            layer.bias = None
    return torch.nn.Sequential(*layers), torch.randn(4, 6)


def run_optimizer(side, info, kwargs):
    model, given = model_for(info)
    model._apply(lambda tensor: tensor.to(side.name, copy=True))
    given = given.to(side.name)
    kwargs = {
        key: value.to(side.name) if isinstance(value, torch.Tensor) and value.dim() else value
        for key, value in kwargs.items()
    }
    side.seed(SEED)

    def call():
        optimizer = info.optim_cls(model.parameters(), **kwargs)
        losses = []

        def closure():
            optimizer.zero_grad()
            loss = model(given).square().mean()
            loss.backward()
            losses.append(loss.detach())
            return loss

        for _ in range(STEPS):
            closure()
            if kwargs.get("differentiable"):
                with torch.no_grad():
                    optimizer.step(closure if info.step_requires_closure else None)
            else:
                optimizer.step(closure if info.step_requires_closure else None)
        state = optimizer.state_dict()["state"]
        return losses, dict(model.state_dict()), state

    return observe(side, call, ())
