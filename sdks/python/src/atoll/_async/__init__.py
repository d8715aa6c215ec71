"""The SDK for programs on an event loop."""
