"""Tests of the benchmarks: run by `make slow` and by hand, not by `make test`."""
