"""The parts of the supervisor's loop: claiming, holding, watching and recording, without ever blocking."""
