"""Products with strips are products with the matrices they stand for."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch

from fedbiad.arrays import FloatArray
from fedbiad.models import MLP
from fedbiad.products import WIDTHS
from fedbiad.training.batches import Derived, judged
from fedbiad.training.strips import PAYS, Picture, Strips, add_back, multiply

BACKGROUND = -0.5


def pictures(samples: int, inputs: int, share: float = 0.2, seed: int = 0, dtype: type = np.float64) -> FloatArray:
    stream = np.random.default_rng(seed)
    x = np.where(stream.random((samples, inputs)) < share, stream.normal(size=(samples, inputs)), BACKGROUND)
    x[:, 0] = BACKGROUND
    return x.astype(dtype)


def picture(x: FloatArray) -> Picture:
    found = Picture.of(x)
    assert found is not None
    return found


def test_strips_by_hand() -> None:
    strips = Strips.of(np.array([[0.0, 1, 0, 0], [0, 3, 0, 2], [4, 0, 0, 0]]), 0.0)
    assert strips.starts.tolist() == [0, 2, 3]
    assert strips.columns.tolist() == [1, 3, 0]
    assert strips.values.tolist() == [[1, 3], [0, 2], [4, 4]]  # of the last strip only one row counts
    assert strips.share == 3 / 8
    assert strips.rows.tolist() == [[0, 1], [2, 2]]


def test_samples_that_are_alike_are_together_by_hand() -> None:
    x = np.array([[0.0, 1, 1, 0], [5, 0, 0, 5], [0, 2, 0, 0], [0, 3, 3, 0], [6, 0, 0, 6]])
    assert Strips.of(x, 0.0, 1).rows.tolist() == [[0, 1], [2, 3], [4, 4]]
    assert Strips.of(x, 0.0, 2).rows.tolist() == [[0, 2], [1, 4], [3, 3]]  # row 3 is too far from row 0
    strips = Strips.of(x, 0.0, 4)
    assert strips.rows.tolist() == [[0, 3], [1, 4], [2, 2]]
    assert (strips.starts.tolist(), strips.columns.tolist()) == ([0, 2, 4, 5], [1, 2, 0, 3, 1])
    assert strips.values.tolist() == [[1, 3], [1, 3], [5, 6], [5, 6], [2, 2]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_which_samples_are_together_changes_no_bit(dtype: type) -> None:
    x = pictures(61, 200, dtype=dtype)
    factor: FloatArray = np.random.default_rng(6).normal(size=(200, 150)).astype(dtype)
    apart, found = (Strips.of(x, BACKGROUND, window) for window in (1, 64))
    assert apart.rows.tolist() != found.rows.tolist()
    assert found.share < apart.share
    assert sorted({int(row) for row in found.rows.flatten()}) == list(range(61))
    bias: FloatArray = np.zeros(150, dtype)
    assert np.array_equal(found.times(factor, bias), apart.times(factor, bias))


@pytest.mark.parametrize("units", [1, 15, 16, 17, 100, WIDTHS[0], WIDTHS[0] + 19, 300])
@pytest.mark.parametrize("samples", [1, 2, 3, 7, 60])
def test_products_are_those_with_the_matrix(samples: int, units: int) -> None:
    stream, x = np.random.default_rng(1), pictures(samples, 50)
    first, bias, a = stream.normal(size=(50, units)), stream.normal(size=units), stream.normal(size=(samples, units))
    own = picture(x)
    product = own.by_sample.times(first, bias)
    np.testing.assert_allclose(product, x @ first + bias, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(own.back(a), x.T @ a, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(own.gram, x @ x.T + 1, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_many_clients_in_one_call_are_each_alone(dtype: type, same: bool) -> None:
    """Of four clients the second is no picture; each has its own factor, or all the same one."""
    stream, sizes = np.random.default_rng(1), np.array([7, 4, 60, 3])
    ends = np.cumsum(sizes)
    xs = [pictures(size, 50, seed=k, dtype=dtype) for k, size in enumerate(sizes)]
    own = {k: Strips.of(xs[k], BACKGROUND) for k in (0, 2, 3)}
    shape = (1, 50, 33) if same else (4, 50, 33)
    factors: FloatArray = np.broadcast_to(stream.normal(size=shape).astype(dtype), (4, 50, 33))
    biases: FloatArray = np.broadcast_to(stream.normal(size=(shape[0], 33)).astype(dtype), (4, 33))
    out = np.full((ends[-1], 33), 7.0, dtype)
    multiply(own, factors, biases, ends - sizes, out)
    for k, end in enumerate(ends):
        alone = own[k].times(factors[k], biases[k]) if k in own else np.full((sizes[k], 33), 7.0)
        assert np.array_equal(out[end - sizes[k] : end], alone)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_adding_what_clients_learned_is_adding_each(dtype: type) -> None:
    stream, sizes = np.random.default_rng(1), np.array([7, 4, 60, 3])
    ends = np.cumsum(sizes)
    spans = np.stack([ends - sizes, ends], axis=1)
    own = [picture(pictures(size, 50, seed=k, dtype=dtype)) for k, size in enumerate(sizes)]
    a: FloatArray = stream.normal(size=(ends[-1], 33)).astype(dtype)
    held = stream.random((3, 33)) < 0.6
    weights: FloatArray = np.array([3.5, 1.0, 20.0]).astype(dtype)
    held[1] = True
    total: FloatArray = stream.normal(size=(50, 33)).astype(dtype)
    expected = total.copy()
    for k, rows, weight in zip((0, 2, 3), held, weights, strict=True):
        expected += weight * own[k].back(a[slice(*spans[k])] * rows)
    add_back([own[k] for k in (0, 2, 3)], a, spans[[0, 2, 3]], held, weights, total)
    assert np.array_equal(total, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_unit_comes_to_the_same_whichever_others_there_are(dtype: type) -> None:
    """So that a client that sends some rows sends the same as one that sends all."""
    own = picture(pictures(20, 60, dtype=dtype))
    a: FloatArray = np.random.default_rng(2).normal(size=(20, 300)).astype(dtype)
    whole = own.back(a)
    for units in (np.arange(5, 300, 3), np.array([299]), np.arange(40, 190)):
        assert np.array_equal(own.back(np.ascontiguousarray(a[:, units])), whole[:, units])
    masked = a.copy()
    masked[:, ::2] = 0
    np.testing.assert_array_equal(own.back(masked), np.where(np.arange(300) % 2, whole, 0))


def test_what_is_no_picture_is_not_taken_for_one() -> None:
    assert Picture.of(np.random.default_rng(3).normal(size=(20, 60))) is None
    assert Picture.of(pictures(20, 60, 0.5)) is None  # three samples together leave an eighth of the background
    assert Picture.of(np.full((20, 60), np.nan)) is None
    assert picture(pictures(20, 60)).by_sample.share <= PAYS


def test_a_sample_of_nothing_but_background_and_numbers_that_are_none() -> None:
    x = pictures(9, 30)
    x[3:6] = BACKGROUND
    x[8, 7] = np.nan
    first = np.random.default_rng(4).normal(size=(30, 5))
    strips = Strips.of(x, BACKGROUND)
    out = strips.times(first, np.zeros(5))
    np.testing.assert_allclose(out[:8], x[:8] @ first, rtol=1e-12, atol=1e-12)
    assert np.isnan(out[8]).all()


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_a_network_judges_pictures_as_anything_else(share: float) -> None:
    model = MLP(60, (20, 9), 4)
    x = torch.from_numpy(pictures(30, 60, share, dtype=np.float32))
    batch = judged(x, torch.zeros(30, dtype=torch.int64), Derived(), 0)
    assert (batch.strips() is None) == (share == 1.0)
    params = {name: value.unsqueeze(0) for name, value in model.init(np.random.default_rng(5)).items()}
    torch.testing.assert_close(model.answers(params, batch), model.forward(params, batch.inputs, {}))


def test_what_was_found_out_is_kept_up_to_its_limit() -> None:
    derived, found = Derived(3 * 1256), list[int]()

    def look(client: int) -> FloatArray:
        found.append(client)
        return np.full(125, float(client))  # 1000 bytes, and what an entry takes

    for client in (0, 1, 2, 0, 3, 0, 1):
        assert derived.of("number", client, partial(look, client))[0] == client
    assert found == [0, 1, 2, 3, 1]  # 1 was used longest ago when 3 came; 2 gave way to 1
    assert derived.of("another", 0, lambda: "of the same client") == "of the same client"
    elsewhere = copy.copy(derived)  # as it is handed to another process
    elsewhere.of("number", 0, lambda: look(0))
    assert found == [0, 1, 2, 3, 1, 0]  # which begins with none


def test_several_threads_may_ask() -> None:
    derived = Derived(2000)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(derived.of, "square", n % 5, lambda n=n: np.full(60, (n % 5) ** 2)) for n in range(4000)]
    assert [int(one.result()[0]) for one in asked] == [(n % 5) ** 2 for n in range(4000)]
