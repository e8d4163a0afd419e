"""Public fakes and simulated devices. Everything here is labelled simulated wherever it shows."""
