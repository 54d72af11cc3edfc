"""The papers' networks, ready to capture, and a user's own.

    workload = load("resnet18", "small", batch=8)
    loss = workload.loss(workload.model(*workload.inputs), workload.target)

Importing this package does not import torch; `load` does.
"""

from threadcast.networks.builtin import register_built_in
from threadcast.networks.registry import load, names, options, register, sizes, unregister
from threadcast.networks.spec import load_spec
from threadcast.networks.workload import Loss, Workload

__all__ = ["Loss", "Workload", "load", "load_spec", "names", "options", "register", "sizes", "unregister"]

register_built_in()
