"""Trains scikit-learn's MLPRegressor with one hidden layer in less than half of its time.

With the same seed the weights are scikit-learn's to the last bit; a test compares them. On batches of some hundred
rows most of its time goes into asking what kind of table a batch is, and into calls for each array of weights. Here all
weights lie in one array.
"""

from __future__ import annotations

import inspect
import warnings
from functools import cache
from typing import Any

import numpy as np

from threadcast.core.curve import Floats


def fit_network(unfitted: Any, rows: Floats, targets: Floats) -> Any:
    """Fit an MLPRegressor (one hidden layer of rectified linear units, squared error, no early stopping, batches of
    the default size) to rows (n_rows, n_features) and targets (n_rows,), and return it."""
    if not _is_known():
        return unfitted.fit(rows, targets)
    unfitted._backprop = _Backpropagation(unfitted)
    unfitted._fit_stochastic = lambda rows, targets, *others: _descend(unfitted, rows, targets)
    try:
        return unfitted.fit(rows, targets)
    finally:
        del unfitted._backprop, unfitted._fit_stochastic


@cache
def _is_known() -> bool:
    """Whether the installed scikit-learn has the two methods that are replaced, with the arguments that they have in
    1.9."""
    from sklearn.neural_network import MLPRegressor

    shared = ("X", "y", "sample_weight", "activations", "deltas", "coef_grads", "intercept_grads")
    expected = {"_backprop": ("self", *shared), "_fit_stochastic": ("self", *shared, "layer_units", "incremental")}
    return all(
        (method := getattr(MLPRegressor, name, None)) is not None
        and tuple(inspect.signature(method).parameters) == arguments
        for name, arguments in expected.items()
    )


class _Backpropagation:
    """Loss and gradients of a network, in the place of its method `_backprop`."""

    def __init__(self, network: Any) -> None:
        self._network = network

    def __call__(
        self, rows: Floats, targets: Floats, sample_weight: None, activations: list[Any], deltas: list[Any],
        coef_grads: list[Floats], intercept_grads: list[Floats],
    ) -> tuple[float, list[Floats], list[Floats]]:  # fmt: skip
        """The loss and both lists of gradients, which are filled in place."""
        n, alpha = len(rows), self._network.alpha
        (first, last), (first_shift, last_shift) = self._network.coefs_, self._network.intercepts_
        hidden = rows @ first
        hidden += first_shift
        np.maximum(hidden, 0, out=hidden)
        off = hidden @ last
        off += last_shift
        off -= targets
        loss = 0.5 * float((np.add.reduce(off**2, axis=0) / n).mean())
        first_flat, last_flat = first.ravel(), last.ravel()
        loss += (0.5 * alpha) * (np.dot(first_flat, first_flat) + np.dot(last_flat, last_flat)) / n
        below = off @ last.T
        np.copyto(below, 0.0, where=hidden == 0)
        for gradient, shift_gradient, inputs, delta, weights in (
            (coef_grads[1], intercept_grads[1], hidden, off, last),
            (coef_grads[0], intercept_grads[0], rows, below, first),
        ):
            np.matmul(inputs.T, delta, out=gradient)
            gradient += alpha * weights
            gradient /= n
            np.divide(np.add.reduce(delta, axis=0), n, out=shift_gradient)
        return loss, coef_grads, intercept_grads


def _descend(network: Any, rows: Floats, targets: Floats) -> None:
    """Stochastic gradient descent with Nesterov's momentum, or Adam, in the place of the method `_fit_stochastic`."""
    from sklearn.exceptions import ConvergenceWarning

    shapes = [array.shape for array in (*network.coefs_, *network.intercepts_)]
    flat = np.concatenate([array.ravel() for array in (*network.coefs_, *network.intercepts_)])
    slopes = np.empty_like(flat)
    weights, gradients = _views(flat, shapes), _views(slopes, shapes)
    network.coefs_, network.intercepts_ = weights[:2], weights[2:]
    step = _adam(network, flat, slopes) if network.solver == "adam" else _nesterov(network, flat, slopes)
    n, random, order = len(rows), network._random_state, np.arange(len(rows))
    size = min(200, n)
    for _ in range(network.max_iter):
        drawn = np.arange(n)
        random.shuffle(drawn)
        order = order[drawn]
        total = 0.0
        for start in range(0, n, size):
            batch = order[start : start + size]
            loss, _, _ = network._backprop(rows[batch], targets[batch], None, [], [], gradients[:2], gradients[2:])
            total += loss * len(batch)
            step()
        network.n_iter_ += 1
        network.t_ += n
        network.loss_ = total / n
        network.loss_curve_.append(network.loss_)
        improved = network.loss_ <= network.best_loss_ - network.tol
        network._no_improvement_count = 0 if improved else network._no_improvement_count + 1
        network.best_loss_ = min(network.best_loss_, network.loss_)
        if network._no_improvement_count > network.n_iter_no_change:
            break
    else:
        warnings.warn(
            f"Maximum iterations ({network.max_iter}) reached and the optimization hasn't converged yet.",
            ConvergenceWarning,
            stacklevel=2,
        )
    weights = [array.copy() for array in weights]
    network.coefs_, network.intercepts_ = weights[:2], weights[2:]


def _views(flat: Floats, shapes: list[tuple[int, ...]]) -> list[Floats]:
    ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]


def _nesterov(network: Any, flat: Floats, slopes: Floats) -> Any:
    velocity, momentum, rate = np.zeros_like(flat), network.momentum, float(network.learning_rate_init)

    def step() -> None:
        nonlocal velocity
        scaled = rate * slopes
        velocity = momentum * velocity - scaled
        np.add(flat, momentum * velocity - scaled, out=flat)

    return step


def _adam(network: Any, flat: Floats, slopes: Floats) -> Any:
    mean, square, count = np.zeros_like(flat), np.zeros_like(flat), 0
    first, second, epsilon, rate = network.beta_1, network.beta_2, network.epsilon, network.learning_rate_init

    def step() -> None:
        nonlocal mean, square, count
        count += 1
        mean = first * mean + (1 - first) * slopes
        square = second * square + (1 - second) * (slopes**2)
        now = rate * np.sqrt(1 - second**count) / (1 - first**count)
        np.add(flat, -now * mean / (np.sqrt(square) + epsilon), out=flat)

    return step
