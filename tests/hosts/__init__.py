"""Many hosts on one machine, each with a kernel's view of its own: networks, boots, processes, clocks, disks."""
