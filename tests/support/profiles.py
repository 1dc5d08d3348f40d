"""Profiles of what runs on the host."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

import torch


def profile_of_the_host() -> torch.profiler.profile:
    """Return a profiler of operators on the CPU."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    return torch.profiler.profile(activities=activities, acc_events=True)  # else 2.11 warns


def names_in(profile: torch.profiler.profile) -> list[str]:
    """Return the names of all ranges of a profile."""
    events: Any = profile.events()
    return [str(event.name) for event in events]
