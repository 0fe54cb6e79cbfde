"""What runs on a Spark: boot, guard, follow, status, stop (``python -m sparkserve.node ...``)."""
