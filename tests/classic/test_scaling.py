import numpy as np

from ascent.classic.scaling import Moments


def test_moments_of_pieces_equal_the_moments_of_the_whole():
    rows = np.random.default_rng(0).normal(3.0, 2.0, (1000, 4))
    moments = Moments((4,))
    for piece in np.split(rows, [10, 11, 500]):
        moments.update(piece)
    np.testing.assert_allclose(moments.mean, rows.mean(0))
    np.testing.assert_allclose(moments.variance, rows.var(0))


def test_an_entry_that_never_varies_is_left_alone():
    moments = Moments((1,))
    moments.update(np.full((5, 1), 7.0))
    assert moments.std.tolist() == [1.0]
