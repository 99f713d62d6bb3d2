"""Private training in torch: gradient steps whose noise is paid for in advance."""
