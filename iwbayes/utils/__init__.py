"""What every part uses and none owns: checks of arguments, arrays, archives, digests, display, warnings, numerics."""
