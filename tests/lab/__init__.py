"""The fault-injection laboratory: a file system with faults, models of disks, and an explorer of what a power cut leaves."""
