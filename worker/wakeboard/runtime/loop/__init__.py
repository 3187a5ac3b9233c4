"""The parts of the supervisor's loop: claims, runs in flight, slots and results. None of them ever blocks."""
