"""The tests that every engine must pass, and their toy data. Only tests import this package; see its README."""
