"""Kinetic's own model files: written from a GGUF file, verified, signed (docs/FORMAT.md)."""
