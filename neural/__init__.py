"""The original project's import paths: a thin facade over `neuraldbg`. The core never imports it."""
