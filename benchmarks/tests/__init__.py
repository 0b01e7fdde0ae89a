"""Tests of the benchmarks: run by `make bench-tests` and `make slow`, not by `make test`."""
