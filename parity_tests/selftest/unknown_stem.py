"""Unknown faults of a stem's convolutions and of their activated output."""

from __future__ import annotations

import numpy as np

from selftest.unknown import Site, Unknown, require, unknown


def one_tap_missing(site: Site, right: np.ndarray) -> np.ndarray:
    kernel = site.parameters["kernel"].copy()
    require(len(kernel) > 1, "needs two taps")
    kernel[-1] = 0.0
    return site.compute(parameters={"kernel": kernel})


def a_fifth_of_the_inputs_missing(site: Site, right: np.ndarray) -> np.ndarray:
    kernel = site.parameters["kernel"].copy()
    require(kernel.shape[1] > 4, "needs five inputs")
    kernel[:, ::5] = 0.0
    return site.compute(parameters={"kernel": kernel})


def every_third_position_repeated(site: Site, right: np.ndarray) -> np.ndarray:
    wrong = right.copy()
    require(right.shape[1] > 2, "needs three positions")
    wrong[:, 2::3] = right[:, 1::3][:, : wrong[:, 2::3].shape[1]]
    return wrong


OF_STEM: tuple[Unknown, ...] = (
    unknown("its last tap is missing", ("convolution",), one_tap_missing),
    unknown("it leaves every fifth input out", ("convolution",), a_fifth_of_the_inputs_missing),
    unknown(
        "every third position repeats the one before", ("convolution", "stem_output"), every_third_position_repeated
    ),
)
