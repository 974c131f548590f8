"""What a command or a Python call does, from its arguments to its result."""
