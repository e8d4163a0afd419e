"""One file an instrument: a reader that does I/O under a deadline, and a pure parser fed with captures.

Public names (every figure is a ``Reading`` = ``Value | Unavailable(reason)``; bytes, percent, MHz, mW, seconds):

- ``nvml.NvmlProbe(library_dir=None, *, simulated=False, deadline_s=2.0, scenario=None)``: ``await inventory()`` ->
  ``NvmlInventory`` (devices, lost handles, or ``failure``), ``await sample(uuids, clocks=True, accounting_pids=())``
  -> ``dict[uuid, DeviceSample]`` (never raises for a device, never hangs), ``await close()``, ``statistics()``.
- ``nvml_records``: ``DeviceSample`` (memory_used, utilisation, compute, mps, graphics, process_utilisation,
  accounting, clocks...), ``GpuProcess``, ``NvmlDevice``; ``nvml_parse.attribute(processes, own, here)``.
- ``proc``: ``snapshot()`` -> ``ProcTable``; ``tree(root_pid, table)``; ``cpu_seconds(entries)``; ``handles(pid)`` ->
  ``Reading[Handles] | Vanished``; ``environ_has(pid, key, value)``; ``survivors(key, value, table)``.
- ``proc_child.ProcProbe(deadline_s=2.0)``: ``await handles(pids)``, ``await disk_free(paths)``: the calls above that
  can block on a stuck process or mount, in a child that is abandoned when it misses the deadline.
- ``host.sample()`` -> ``HostSample`` (MemAvailable, swap with kind, PSI, load).
- ``identity.read()`` -> ``HostIdentity`` (machine id and its source, boot id, PID namespace, hostname, derived boot).
- ``discovery.discover(probes, identity)`` -> ``Discovery`` (``devices: tuple[FoundDevice, ...]``, ``problems``);
  ``discovery.visible_environment(uuids)`` -> CUDA_VISIBLE_DEVICES and friends.
- ``command.run(argv, deadline_s=5.0)`` -> ``Reading[CommandOutput]``; ``smi``: parsers of captured nvidia-smi output.

Nothing here calls CUDA, and importing this package imports nothing else.
"""
