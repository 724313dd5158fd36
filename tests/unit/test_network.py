"""Times on a thin uplink against numbers worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from fedbiad import streams
from fedbiad.network import Network, lttr, round_seconds, slowest_seconds, time_to_accuracy

CLIENTS = np.arange(2000)


def rounds(*seconds_and_accuracy: tuple[float, float | None]) -> list[dict[str, Any]]:
    """Records with these round times and accuracies; local training takes half of each round."""
    return [
        {"round": r, "accuracy": accuracy, "seconds": {"local": seconds / 2, "round": seconds}}
        for r, (seconds, accuracy) in enumerate(seconds_and_accuracy, 1)
    ]


class TestLinks:
    def test_bytes_to_seconds(self) -> None:
        """424 kB are 3.392 Mbit: at 14 Mbit/s up 0.24229 s, at 110.6 Mbit/s down 0.030669 s."""
        network = Network()
        assert network.upload_seconds(0, 424_000, 0) == pytest.approx(3.392 / 14)
        assert float(network.upload_seconds(0, 424_000, 0)) == pytest.approx(0.2423, abs=5e-5)
        assert float(network.download_seconds(0, 424_000, 0)) == pytest.approx(0.030669, abs=5e-7)
        assert Network(uplink=1.0).upload_seconds(0, 125_000, 0) == pytest.approx(1.0)

    def test_one_size_for_all_or_one_a_client(self) -> None:
        network = Network(uplink=8.0)  # a megabyte a second
        assert network.upload_seconds([3, 4, 5], 2_000_000, 0).tolist() == pytest.approx([2, 2, 2])
        assert network.upload_seconds([3, 4], [1_000_000, 500_000], 0).tolist() == pytest.approx([1, 0.5])

    def test_the_spread_is_log_normal_by_the_clients_own_stream(self) -> None:
        network, seed = Network(uplink=8.0, downlink=80.0, spread=0.5), 7
        z = streams.stream(seed, 0, 11, "link").standard_normal()
        factor = np.exp(0.5 * z - 0.125)
        assert float(network.upload_seconds(11, 1_000_000, seed)) == pytest.approx(1 / factor)
        assert float(network.download_seconds(11, 1_000_000, seed)) == pytest.approx(0.1 / factor)

    def test_the_mean_speed_is_kept(self) -> None:
        """For sigma = 0.5 the factor's standard deviation is sqrt(e^0.25 - 1) = 0.533: 0.0119 for 2000 clients."""
        factors = Network(spread=0.5).link_factor(CLIENTS, 0)
        assert float(factors.mean()) == pytest.approx(1.0, abs=5 * 0.0119)
        assert float(np.log(factors).std()) == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(4000))
        assert float(np.log(factors).mean()) == pytest.approx(-0.125, abs=5 * 0.5 / np.sqrt(2000))

    def test_a_client_keeps_its_link_whoever_is_with_it(self) -> None:
        network = Network(spread=0.5)
        together, reversed_ = network.link_factor(CLIENTS, 0), network.link_factor(CLIENTS[::-1], 0)
        assert np.array_equal(together, reversed_[::-1])
        assert float(network.link_factor(17, 0)) == together[17]
        assert network.link_factor([[1, 2], [3, 4]], 0).tolist() == together[1:5].reshape(2, 2).tolist()
        assert not np.array_equal(together, network.link_factor(CLIENTS, 1))


class TestSlowness:
    def test_all_alike_without_a_share(self) -> None:
        assert Network().slowness([0, 1, 2], 0).tolist() == [1, 1, 1]

    def test_a_share_of_the_clients_is_slow(self) -> None:
        """Of 2000 clients 400 are slow, with standard deviation sqrt(2000 0.2 0.8) = 17.9."""
        slow = Network(slow_share=0.2, slow_factor=3.0).slowness(CLIENTS, 0)
        assert set(slow.tolist()) == {1.0, 3.0}
        assert abs(int((slow == 3.0).sum()) - 400) < 5 * 17.9
        assert np.array_equal(slow[:9], Network(slow_share=0.2, slow_factor=3.0).slowness(CLIENTS[:9], 0))

    def test_links_and_paces_are_independent(self) -> None:
        """Correlation of 2000 pairs: standard deviation 0.022 if there is none."""
        network = Network(spread=0.5, slow_share=0.5)
        r = np.corrcoef(np.log(network.link_factor(CLIENTS, 0)), network.slowness(CLIENTS, 0))[0, 1]
        assert abs(r) < 5 * 0.0224


class TestRounds:
    def test_the_round_waits_for_the_slowest_client(self) -> None:
        """Clients take 0.1 + 1 + 0.2 = 1.3, 0.1 + 2 + 0.1 = 2.2 and 0.1 + 0.5 + 1.5 = 2.1 s."""
        local, upload = [1.0, 2.0, 0.5], [0.2, 0.1, 1.5]
        assert slowest_seconds(local, upload, 0.1) == pytest.approx(2.2)
        assert round_seconds(local, upload, 0.1, 0.05) == pytest.approx(2.25)

    def test_time_to_accuracy(self) -> None:
        """1.5 + 2 + 0.5 s until the third round; the second is not judged, but its time counts."""
        records = rounds((1.5, 0.6), (2.0, None), (0.5, 0.9), (4.0, 0.95))
        assert time_to_accuracy(records, 0.9) == pytest.approx(4.0)
        assert time_to_accuracy(records, 0.5) == pytest.approx(1.5)
        assert time_to_accuracy(records, 0.91) == pytest.approx(8.0)
        assert time_to_accuracy(records, 0.96) is None
        assert time_to_accuracy([], 0.1) is None

    def test_the_first_time_counts_even_if_accuracy_falls_again(self) -> None:
        assert time_to_accuracy(rounds((1.0, 0.9), (1.0, 0.2), (1.0, 0.9)), 0.9) == pytest.approx(1.0)

    def test_lttr_is_the_mean_over_rounds(self) -> None:
        assert lttr(rounds((1.0, None), (2.0, 0.5), (6.0, 0.5))) == pytest.approx(1.5)
        with pytest.raises(ValueError, match="no round"):
            lttr([])


@pytest.mark.parametrize(
    "wrong",
    [
        {"uplink": 0.0}, {"downlink": -1.0}, {"uplink": float("inf")}, {"spread": -0.1}, {"slow_share": 1.0},
        {"slow_share": -0.1}, {"slow_factor": 0.5}, {"count": "transport"}, {"upload": 14.0},
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    adapter = TypeAdapter(Network)
    assert adapter.validate_json('{"uplink": 2, "count": "paper"}', strict=True) == Network(uplink=2.0, count="paper")
    with pytest.raises(ValidationError):
        adapter.validate_json(json.dumps(wrong), strict=True)
