"""What every engine must pass, and the toy data of it. Only tests import this package; see its README."""
