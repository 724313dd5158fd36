"""Did the last tau iterations get worse than the tau before them?"""

from __future__ import annotations

from fedbiad.arrays import FloatArray, Losses


def checks(iterations: int, interval: int) -> range:
    """After which iterations v the trend is checked: v > tau and v % tau = 0 (Algorithm 1), first at v = 2 tau."""
    return range(2 * interval, iterations, interval)


def loss_gap(losses: Losses, iteration: int, interval: int) -> FloatArray:
    """Mean loss of the last tau iterations minus that of the tau before, for each client [clients].

    Eq. (loss_diff): DeltaL^{k,v} = Lbar^{k,v} - Lbar^{k,v-tau}, Lbar^{k,v} over iterations v-tau+1 .. v, v >= 2 tau.
    Differs from the paper: it calls Lbar an average but prints a sum; the mean is meant, the sign is the same.
    """
    if iteration < 2 * interval:
        raise ValueError(f"the loss gap needs v >= 2 tau: v = {iteration}, tau = {interval}")
    end = iteration + 1
    recent = losses[:, end - interval : end].mean(1)
    before = losses[:, end - 2 * interval : end - interval].mean(1)
    gap: FloatArray = recent - before
    return gap
