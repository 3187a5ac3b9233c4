"""What handler authors use: the registry, the context, effects, the pool, the built-in handlers."""
