"""The compiled part of the reader, which is optional: without a C compiler the package installs, and reads slower."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension("moescope.trace._block", ["moescope/trace/_block.c"], py_limited_api=True, optional=True),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
