"""The promises of ``StageEngine`` as tests, and what they are driven with.

It holds no engine; ``promises`` is the test module, ``plugin`` brings its fixtures to pytest.
"""
