"""What the controller does by itself, one loop a file. Each ends when cancelled and says why it acts."""
