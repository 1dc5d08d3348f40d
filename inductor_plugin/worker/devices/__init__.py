"""The devices that are tuned on: CPU and CUDA, described as `device.Device`, and those that packages register."""
