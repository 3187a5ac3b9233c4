"""Why runs wait: ``wait_reasons`` says it of one run, ``standstill`` of all runs of a type. Reads only."""
