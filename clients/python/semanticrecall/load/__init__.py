"""`semanticrecall load`: load on a sidecar, measured so that a slow one cannot hide.

Needs the extra `[load]`. `plan` says what is sent, `result` what comes of it (the JSON's schema),
`run` does it. Open loop: calls begin when a schedule says so, whatever became of those before, and
their latency counts from the schedule: a server that stands still for a second is seen by every
call of that second (Tene, "How NOT to Measure Latency", 2015: coordinated omission). Closed loop:
so many callers, each asking again when it is answered.
"""
