"""Logistic regression of scikit-learn at three hospitals, averaged by sealed sums."""

import numpy as np

import secure_fl

try:
    from sklearn.datasets import load_digits
    from sklearn.linear_model import SGDClassifier
except ImportError:
    raise SystemExit("this example needs scikit-learn: pip install scikit-learn") from None


def main(cohort):
    x, y = load_digits(return_X_y=True)
    x, y = x[cohort.index :: 3] / 16, y[cohort.index :: 3]  # this hospital's records
    model = SGDClassifier(loss="log_loss", random_state=0)
    shared = {"coef": np.zeros((10, 64)), "intercept": np.zeros(10)}
    for _ in cohort.rounds(shared):
        model.fit(x, y, coef_init=shared["coef"], intercept_init=shared["intercept"])
        local = {"coef": model.coef_, "intercept": model.intercept_}
        shared.update(cohort.mean(local, weight=len(x), base=shared))
    model.coef_, model.intercept_ = shared["coef"], shared["intercept"]
    return model.score(x, y)


print(secure_fl.simulate(main, sites=3, rounds=5).results)
