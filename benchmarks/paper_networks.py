"""The training steps of the papers' networks as graphs, stored so that the simulations need no torch.

    python benchmarks/paper_networks.py          capture all of them again into data/graphs/

Liu et al. 2018 (IV-A): ResNet-50, DCGAN, Inception-v3 and LSTM at their batch sizes; AlexNet, which the regressors are
tested with (III-B). Tang et al. 2018 (Graphi, Table
1): LSTM, PhasedLSTM, PathNet and GoogLeNet, size medium.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import click

from threadcast.core import Edge, OpGraph

GRAPHS = Path(__file__).parent.parent / "data" / "graphs"
LIU = ("resnet50", "dcgan", "inception_v3", "lstm")
GRAPHI = {"lstm": "lstm_medium", "phased_lstm": "phased_lstm_medium", "pathnet": "pathnet_medium",
          "googlenet": "googlenet_medium"}  # fmt: skip


def without_views(graph: OpGraph) -> OpGraph:
    """The graph of the ops that are no views; what waited for a view waits for what the view waits for.

    Curves that the graph has are left out.
    """
    behind: list[dict[int, None]] = [{} for _ in graph.ops]  # the last real ops at or before each op
    for op in graph.topological_order:
        if graph.ops[op].is_view:
            for before in graph.predecessors[op]:
                behind[op].update(behind[before])
        else:
            behind[op][op] = None
    real = [i for i, op in enumerate(graph.ops) if not op.is_view]
    position = {old: new for new, old in enumerate(real)}
    edges = {
        (position[source], position[op]): None
        for op in real
        for before in graph.predecessors[op]
        for source in behind[before]
    }
    return OpGraph(
        tuple(graph.ids[i] for i in real), tuple(graph.ops[i] for i in real), tuple(Edge(*edge) for edge in edges)
    )


def load(name: str) -> OpGraph:
    """Return a stored graph without its views, which are no work and no node of the papers' frameworks."""
    document = json.loads(gzip.decompress((GRAPHS / f"{name}.json.gz").read_bytes()))
    return without_views(OpGraph.from_json(document))


def one_after_the_other(first: OpGraph, second: OpGraph) -> OpGraph:
    """Return both graphs as one; nothing of the second starts before all of the first has finished."""
    shift = len(first)
    last = [i for i, after in enumerate(first.successors) if not after]
    starts = [i for i, before in enumerate(second.predecessors) if not before]
    edges = [*first.edges]
    edges += [Edge(e.source + shift, e.target + shift, e.ordering) for e in second.edges]
    edges += [Edge(i, j + shift, ordering=True) for i in last for j in starts]
    ids = (*(f"1.{name}" for name in first.ids), *(f"2.{name}" for name in second.ids))
    return OpGraph(ids, (*first.ops, *second.ops), tuple(edges))


def _capture(name: str, size: str, *, momentum: float) -> OpGraph:
    from torch.optim import SGD

    from threadcast import networks
    from threadcast.capture.graph.capture import capture_training

    work = networks.load(name, size=size)
    assert work.loss is not None
    optimizer = SGD(work.model.parameters(), lr=0.1, momentum=momentum)
    return capture_training(work.model, work.loss, optimizer, work.inputs, work.target).graph


def _capture_dcgan() -> OpGraph:
    """One step as Radford et al. 2016 train: the discriminator on real and on generated images, then the generator
    through the discriminator, each with Adam. The second waits for the first, whose update it reads, and computes no
    gradients of the discriminator's parameters, as TensorFlow's `minimize(loss, var_list=...)`."""
    import torch
    from torch import Tensor, nn
    from torch.nn.functional import binary_cross_entropy_with_logits as verdict
    from torch.optim import Adam

    from threadcast import networks
    from threadcast.capture.graph.capture import capture_training

    generator, discriminator = (networks.load(f"dcgan_{part}", size="paper") for part in ("generator", "discriminator"))
    generate, judge = generator.model, discriminator.model
    (noise,), (images,) = generator.inputs, discriminator.inputs
    real = torch.ones(len(images))

    class Discrimination(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generate, self.judge = generate, judge

        def forward(self, real_images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
            return self.judge(real_images), self.judge(self.generate(noise).detach())

    def both_losses(logits: tuple[Tensor, Tensor], real: Tensor) -> Tensor:
        return verdict(logits[0], real) + verdict(logits[1], 1 - real)

    def adam(model: nn.Module) -> Adam:
        return Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999))

    first = capture_training(Discrimination(), both_losses, adam(judge), (images, noise), real)
    judge.requires_grad_(False)
    second = capture_training(nn.Sequential(generate, judge), verdict, adam(generate), (noise,), real)
    return one_after_the_other(first.graph, second.graph)


CAPTURES: dict[str, Callable[[], OpGraph]] = {
    "resnet50": lambda: _capture("resnet50", "paper", momentum=0.9),
    "dcgan": _capture_dcgan,
    "inception_v3": lambda: _capture("inception_v3", "paper", momentum=0.9),
    "lstm": lambda: _capture("lstm", "paper", momentum=0.0),
    "alexnet": lambda: _capture("alexnet", "paper", momentum=0.9),
    **{file: (lambda name=name: _capture(name, "medium", momentum=0.0)) for name, file in GRAPHI.items()},
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(tuple(CAPTURES)))
def main(names: tuple[str, ...]) -> None:
    """Capture the papers' training steps into data/graphs/ (all of them, or NAMES)."""
    GRAPHS.mkdir(parents=True, exist_ok=True)
    for name in names or CAPTURES:
        graph = CAPTURES[name]()
        path = GRAPHS / f"{name}.json.gz"
        text = json.dumps(graph.to_json(), separators=(",", ":"))
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
        print(
            f"{path.name}: {len(graph)} ops, {len(graph.distinct_ops())} distinct, {path.stat().st_size / 1e3:.0f} kB"
        )


if __name__ == "__main__":
    main()
