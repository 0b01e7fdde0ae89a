"""The version of this package, without the package's other names."""

VERSION = "0.1.0"
