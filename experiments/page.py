"""Figures and docs/experiments.md from the results."""

from __future__ import annotations
