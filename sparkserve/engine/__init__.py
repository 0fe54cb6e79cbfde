"""The engine as data: its command line, its environment, the spec of each rank, its log lines."""
