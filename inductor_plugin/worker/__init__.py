"""The process border: jobs, processes and pools of workers, and what both sides measure with: timers, turns on a GPU, disturbances."""
