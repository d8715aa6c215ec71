"""The SDK for programs that wait. All but `network` and `forward` is made from `_async` by `generate.py`."""
