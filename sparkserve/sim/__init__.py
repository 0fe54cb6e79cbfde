"""What stands in for hardware nobody has at hand: the demo model and the CPU engine's shim."""
