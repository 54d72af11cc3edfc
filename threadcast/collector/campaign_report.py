"""What a campaign tells: how far it is, and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from threadcast.collector.busy import Load
from threadcast.collector.campaign_checks import CheckedRegret
from threadcast.collector.proposers import Choice
from threadcast.collector.rounds import ExpectedRegret
from threadcast.core import Measurement


@dataclass(frozen=True, slots=True)
class CampaignProgress:
    """How far a campaign is.

    `done` counts measured and reused cases and failed ops; `total` may grow while a model adapts. `reused` counts cases
    that were already in the store.
    """

    done: int
    total: int
    reused: int
    expected_regret: float | None = None
    """The larger of the step's and the ops' mean, before this round; None without forecasts."""


@dataclass(frozen=True, slots=True)
class CampaignReport:
    """The outcome of a campaign.

    `observed` are all measurements by op key, those of earlier campaigns included. `failed` is by op key why the op
    failed. `measured` and `reused` count cases. `elapsed_s` is the campaign's duration in seconds.
    """

    observed: Mapping[str, tuple[Measurement, ...]]
    failed: Mapping[str, str]
    measured: int
    reused: int
    elapsed_s: float
    load: Load | None
    """How busy other processes kept the CPUs meanwhile; None if nothing was measured or the load could not be read."""
    choices: Mapping[str, Choice] = field(default_factory=dict)
    """By op key, the case that the forecast chooses at the end; empty where the proposer is no `LearningProposer`."""
    expected: ExpectedRegret | None = None
    """What these choices are expected to cost; None where there are none."""
    checked: CheckedRegret | None = None
    """What choices cost that were checked; None where none was."""
    repeated: int = 0
    """How many measurements were made again because others had disturbed them."""
    disturbed: int = 0
    """Of how many cases all measurements are disturbed, earlier campaigns' included."""
    drift: float | None = None
    """By what factor old measurements were off when some were made again; None where none was. Above `DRIFT` all were
    made again."""
