"""What each command does, in a line of the first help page: to print it, no command has to be imported."""

SUMMARIES = {
    "up": "Run all of it on this machine: database, tables, worker with schedules, dashboard.",
    "worker": "Run a worker: it claims runs, fires schedules and takes over what others lost.",
    "tick": "For a crontab line: fire what is due, run until nothing is left, end.",
    "web": "Run the dashboard alone.",
    "enqueue": "Enqueue a run of TYPE and print its id.",
    "runs": "List runs, newest first.",
    "run": "Show a run: its state, why it waits, its attempts and who did what to it.",
    "retry": "Make runs due now: out of a backoff, or back from dead and cancelled.",
    "cancel": "Cancel runs: waiting and dead ones at once, running ones are asked to stop.",
    "again": "Enqueue a new run like an ended one.",
    "operations": "One move on many runs: start, list, show, pause, resume, abort.",
    "leases": "List running runs and how their leases stand.",
    "release": "Take runs from a worker that is silent or whose lease has ended.",
    "schedule": "Schedules: add, list, preview, run, pause, resume, remove.",
    "import-crontab": (
        "Make a schedule of each line of FILE (- for standard input); a second time nothing changes."
    ),
    "types": "Job types: list, pause, resume, hold, let-go, limit, keep.",
    "workers": "Workers: list, drain, undrain, stop.",
    "effects": "Unconfirmed effects of once(): list, settle.",
    "alerts": "Alert rules: list, test, silence, edit, on, off.",
    "audit": "List who did what, newest first.",
    "user": "People who sign in: add, list, role, passwd, disable, enable.",
    "token": "API tokens: create, list, revoke.",
    "login-link": "Print a fresh login link: single use, 15 minutes, the role admin.",
    "db": "The database: upgrade, check, url, shell, backup, restore, fence, stop.",
    "rehearse": (
        "Rehearse the worst day: 100 receipts by real mail, 20 refused at first, a worker stopped,"
        " one killed."
    ),
    "doctor": "Check configuration, database, schema, workers and app; exit code 1 when something fails.",
    "config": "List every setting, its value and where it came from; secrets are masked.",
}
