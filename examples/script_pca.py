"""Principal components over three hospitals: two sealed sums, and one result for all."""

import numpy as np

import secure_fl


def main(cohort):
    rng = np.random.default_rng(cohort.index)
    x = (
        rng.normal(size=(300, 2)) @ rng.normal(size=(2, 6)) + cohort.index
    )  # this hospital's records
    center = cohort.mean({"center": x.mean(0)}, weight=len(x))["center"]
    x = x - center
    products = cohort.sum({"products": x.T @ x, "records": len(x)})
    values, vectors = np.linalg.eigh(products["products"] / products["records"])
    return values[::-1] / values.sum(), vectors[:, ::-1]


done = secure_fl.simulate(main, sites=3, rounds=1)
shares, components = done.results["site-1"]
print("share of variance:", shares.round(3))
print("a plan for the same sums:", done.plan, sep="\n")
