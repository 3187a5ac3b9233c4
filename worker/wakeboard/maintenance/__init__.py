"""What keeps the database small, quick and safe."""
