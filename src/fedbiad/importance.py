"""The experience-based importance indicator: weight scores E^k and the pattern of stage two."""

from __future__ import annotations

import numpy as np

from fedbiad import compiled, patterns
from fedbiad.arrays import FloatArray, IntArray, Pattern
from fedbiad.rows import Layout

NEUTRAL_RANK = 0.5
"""Mean score of a row never held: no evidence, so the middle of the ranks, neither sought nor shunned."""


def update_scores(scores: FloatArray, held: Pattern, gap: FloatArray, following: Pattern) -> FloatArray:
    """Count, for every row held at a check, whether it is held on (arrays [clients, rows], gap [clients]).

    Eq. (score_update): E_j + 1 if DeltaL <= 0, else E_j + e_j, with e_j = beta_j^{v+1}; for rows held at v.
    Differs from the paper: applied at the checks of stage one, the only iterations where DeltaL exists.
    """
    gains = np.where((gap <= 0)[:, None], True, following)
    return scores + (held & gains)


def evidence_ranks(layout: Layout, evidence: FloatArray, held: Pattern) -> FloatArray:
    """Rank of each held row's evidence among the held rows of its group, in (0, 1); 0 for rows not held.

    The evidence on a row is ||mu_end - mu_received||^2 (its KL divergence from what was received, up to a factor
    common to all rows). Equal evidence shares the mean rank; n held rows get (rank - 1/2) / n, mean 1/2.
    """
    ranks = np.zeros(evidence.shape)
    for rows in layout.ranges.values():
        for own, own_evidence, own_held in zip(ranks[:, rows], evidence[:, rows], held[:, rows], strict=True):
            own[own_held] = compiled.mean_ranks(own_evidence[own_held])
    return ranks


def mean_scores(scores: FloatArray, holds: IntArray) -> FloatArray:
    """Score per hold; a row never held is neutral."""
    return np.where(holds > 0, scores / np.maximum(holds, 1), NEUTRAL_RANK)


def threshold(scores: FloatArray, dropout_rate: float) -> FloatArray:
    """lambda^k_r: the p-quantile of each client's scores [clients, rows], one column."""
    quantile: FloatArray = np.quantile(scores, dropout_rate, axis=-1, keepdims=True)
    return quantile


def above_threshold(
    layout: Layout, scores: FloatArray, dropout_rate: float, luck: FloatArray, scope: patterns.Scope
) -> Pattern:
    """Stage two to the letter: beta_j = 1 where E_j > lambda (ties drop more than p of the rows).

    Differs from the paper: where no score lies above the quantile (a client never seen before has E = 0 throughout)
    the empty pattern, which is not in Z^S_N, is replaced by a fresh random one.
    """
    held = scores > threshold(scores, dropout_rate)
    return np.where(held.any(-1, keepdims=True), held, patterns.draw(layout, dropout_rate, luck, scope))
