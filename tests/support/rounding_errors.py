"""How rounding errors are measured and judged: pooled over the seeds of a shape."""

import statistics


def largest_error(result, right):
    return (result.double() - right).abs().max().item()


def expect_gradients_near(test, name, cases_of_shapes, factor):
    """Judges gradients by (our largest error, the plain formula's, the largest gradient).

    `cases_of_shapes` gives a shape and, for each of its seeds, those three for every leaf. Ours may
    be `factor` times the formula's and a rounding of the largest gradient.
    """
    pooled, single = [], []
    for shape, cases in cases_of_shapes:
        for of_leaf in zip(*cases):
            single += [a / b for a, b, _ in of_leaf if b > 0]
            ours, formulas, largest = (max(column) for column in zip(*of_leaf))
            test.assertLessEqual(ours, factor * formulas + 4 * 2**-24 * largest, shape)
            pooled.append(ours / max(formulas, 1e-30) if ours > 0 else 0.0)
    within = statistics.quantiles(pooled, n=20)[-1]
    median = statistics.median(single)
    print(f"{name}: worst {max(pooled):.3f}, 95 % within {within:.3f}, median case {median:.3f}")
    test.assertLessEqual(within, 2.5)
    test.assertLessEqual(median, 1.1)
