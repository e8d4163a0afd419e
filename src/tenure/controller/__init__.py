"""The controller: assembly, authentication, thin routes and loops around the fleet core."""
