"""Networks are scikit-learn's own, to the last bit."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from threadcast.models import regressors, small_networks
from threadcast.models.small_networks import fit_network


@pytest.mark.parametrize("solver", ["mlp_sgd", "mlp_lbfgs", "mlp_adam"])
@pytest.mark.parametrize(("rows", "features"), [(40, 3), (200, 8), (431, 16)])
def test_a_network_has_the_weights_of_scikit_learn(solver: str, rows: int, features: int) -> None:
    random = np.random.default_rng(rows)
    inputs = random.normal(size=(rows, features))
    targets = inputs[:, 0] - np.abs(inputs[:, 1]) + 0.1 * random.normal(size=rows)
    fitted = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for fit in (lambda network: network.fit(inputs, targets), lambda n: fit_network(n, inputs, targets)):
            network = regressors.make(solver, seed=3)
            network.max_iter = 60
            fitted.append(fit(network))
    theirs, ours = fitted
    assert small_networks._is_known()
    for before, after in zip((*theirs.coefs_, *theirs.intercepts_), (*ours.coefs_, *ours.intercepts_), strict=True):
        np.testing.assert_array_equal(before, after)
    assert (theirs.n_iter_, theirs.loss_) == (ours.n_iter_, ours.loss_)
    np.testing.assert_array_equal(theirs.predict(inputs), ours.predict(inputs))
    assert not {"_backprop", "_fit_stochastic"} & vars(ours).keys()


@pytest.mark.parametrize("solver", ["mlp_sgd", "mlp_adam"])
def test_a_network_that_does_not_converge_says_so(solver: str) -> None:
    random = np.random.default_rng(0)
    network = regressors.make(solver)
    network.max_iter = 2
    with pytest.warns(ConvergenceWarning, match="2"):
        fit_network(network, random.normal(size=(50, 3)), random.normal(size=50))


def test_scikit_learn_trains_where_its_methods_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_networks, "_is_known", lambda: False)
    random = np.random.default_rng(0)
    network = fit_network(regressors.make("mlp_adam"), random.normal(size=(50, 3)), np.zeros(50))
    assert network.n_features_in_ == 3
