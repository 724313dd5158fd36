"""Random streams depend on their key alone."""

from __future__ import annotations

import numpy as np
import pytest

from fedbiad import streams
from fedbiad.cohort import Cohort


def test_every_coordinate_counts() -> None:
    base = (1, 2, 3, "pattern")
    others = [(9, 2, 3, "pattern"), (1, 9, 3, "pattern"), (1, 2, 9, "pattern"), (1, 2, 3, "batches")]
    # places change hands, and digits run into one another, without two keys becoming equal
    others += [(2, 1, 3, "pattern"), (1, 3, 2, "pattern"), (12, 3, 3, "pattern"), (1, 23, 3, "pattern")]
    keys = {streams.key(*coordinates) for coordinates in (base, *others)}
    assert len(keys) == len(others) + 1
    assert all(0 <= key < 2**64 for key in keys)
    first = streams.stream(*base).random(4).tolist()
    assert all(streams.stream(*coordinates).random(4).tolist() != first for coordinates in others)


def test_same_key_same_draws() -> None:
    one, two = streams.stream(1, 2, 3, "a"), streams.stream(1, 2, 3, "a")
    np.random.default_rng(0).random(10)  # other generators do not matter
    assert one.random(100).tolist() == two.random(100).tolist()


def test_a_stream_is_philox_with_the_key() -> None:
    expected = np.random.Generator(np.random.Philox(key=streams.key(1, 2, 3, "a")))
    assert streams.stream(1, 2, 3, "a").random(100).tolist() == expected.random(100).tolist()


def test_keys_never_change() -> None:
    """A stored run is resumed by key. `printf 0/1/2/pattern | b2sum -l 64` prints c4960d37c6efe746."""
    assert streams.key(0, 1, 2, "pattern") == int.from_bytes(bytes.fromhex("c4960d37c6efe746"), "little")
    assert streams.key(0, 1, streams.SERVER, "selection") == int.from_bytes(bytes.fromhex("8f83f763ea501cb7"), "little")


def test_a_client_draws_by_its_id_not_its_position() -> None:
    alone, block = Cohort(0, 1, (7,)), Cohort(0, 1, (3, 7, 5))

    assert len(block) == 3
    assert np.array_equal(alone.luck("pattern", 20)[0], block.luck("pattern", 20)[1])
    assert np.array_equal(alone.luck("pattern", 20), block.only(np.array([False, True, False])).luck("pattern", 20))
    assert not np.array_equal(block.luck("pattern", 20)[0], block.luck("pattern", 20)[1])
    assert alone.keys("noise") == [streams.key(0, 1, 7, "noise")] == block.keys("noise")[1:2]
    assert np.array_equal(alone.schedule([9], 30)[0], block.schedule([5, 9, 2], 30)[1])
    lone, together = (c.unit_masks({"a": 6, "b": 4}, 8, 0.5, 3) for c in (alone, block))
    assert all(np.array_equal(lone[site][0].numpy(), together[site][1].numpy()) for site in ("a", "b"))


def test_the_schedule_visits_each_sample_once_an_epoch() -> None:
    sizes, length = [10, 7, 40], 35
    schedule = Cohort(0, 1, (0, 1, 2)).schedule(sizes, length)
    assert schedule.shape == (3, length)
    for visits, size in zip(schedule, sizes, strict=True):
        for start in range(0, length, size):
            epoch = visits[start : start + size].tolist()
            if len(epoch) == size:
                assert sorted(epoch) == list(range(size))
            else:
                assert len(set(epoch)) == len(epoch)
                assert set(epoch) <= set(range(size))
    assert schedule[0, :10].tolist() != schedule[0, 10:20].tolist()  # shuffled anew
    assert not np.array_equal(schedule, Cohort(0, 2, (0, 1, 2)).schedule(sizes, length))


def test_unit_masks() -> None:
    cohort = Cohort(0, 1, (0, 1))
    assert cohort.unit_masks({"a": 6}, 8, 0.0, 0) == {}
    masks = cohort.unit_masks({"a": 500, "b": 3}, 40, 0.2, 0)
    assert {name: tuple(mask.shape) for name, mask in masks.items()} == {"a": (2, 40, 500), "b": (2, 40, 3)}
    assert set(masks["a"].flatten().tolist()) == {0.0, 1.25}  # 1 / (1 - 0.2)
    # 40 000 labels: the share dropped is 0.2 with standard deviation 0.002; five of them is one failure in 10^6
    assert float((masks["a"] == 0).float().mean()) == pytest.approx(0.2, abs=0.01)
    assert not np.array_equal(masks["a"][0].numpy(), masks["a"][1].numpy())
    later = cohort.unit_masks({"a": 500, "b": 3}, 40, 0.2, 1)
    assert not np.array_equal(masks["a"].numpy(), later["a"].numpy())
