"""The words of the project as types: no torch, no input or output."""
